"""When to plan a step, where another one is on the device: late, so that those who come meanwhile are a part of it.

What another stage launches meanwhile goes before it, too. All times are of one clock, in seconds.
"""

from collections import deque

STEPS = 16
"""The last so many tell how late the next step can be planned."""
SPARE_S = 1.5e-3
"""The next step is launched so long before the one on the device ends, unless the host is slower than it has been."""


class Pace:
    """Of steps that are planned and launched while the one before them is on the device."""

    def __init__(self) -> None:
        self._ended_s: float | None = None
        """When the last step ended, on whose end another one began; None while none is on the device."""
        self._slack_s: deque[float] = deque(maxlen=STEPS)
        """What the last steps took, from one end to the next, beyond planning and launching another one."""

    def ended(self, now_s: float, planned_s: float, launched_s: float | None) -> float:
        """A step has ended, if one was on the device; another one was planned and, if there was any, launched at these
        times, and is on the device now.

        Returns how long the first took: since the end of the one before if it was on the device by then, else since
        the plan.
        """
        before_s, self._ended_s = self._ended_s, None if launched_s is None else now_s
        if before_s is None:
            return now_s - planned_s
        if launched_s is not None:
            self._slack_s.append(now_s - before_s - (launched_s - planned_s))
        return now_s - before_s

    def rest_s(self, now_s: float) -> float:
        """How long the next plan has time."""
        if self._ended_s is None or not self._slack_s:
            return 0.0
        return max(0.0, self._ended_s + min(self._slack_s) - SPARE_S - now_s)
