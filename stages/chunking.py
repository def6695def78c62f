"""How many frames a stream sends to Code2Wav next: a pure decision, since chunk sizes never change a sample.

Small chunks bring the first sound early, large ones cost less a frame. So the first chunk is one frame, and the next
ones grow with the lead: how much audio the listener has beyond what real time has played. Sizes are powers of two, and
a stream sends its chunk of n frames behind a Talker step whose number n divides: the streams of a step go together,
which is a few large steps of Code2Wav instead of many small ones.
"""

from dataclasses import dataclass

SPENT_SHARE = 0.5
"""How much of its spare lead a stream spends on collecting a chunk; the rest is for steps that take longer."""


@dataclass
class Estimate:
    """A duration as it was of late: the mean, and how far from it the values lie (as TCP knows its round trips)."""

    mean_s: float = 0.0
    deviation_s: float = 0.0

    def observe(self, value_s: float) -> None:
        """Another one."""
        error_s = value_s - self.mean_s
        self.mean_s += error_s / 8
        self.deviation_s += (abs(error_s) - self.deviation_s) / 4

    @property
    def upper_s(self) -> float:
        """What it hardly ever exceeds."""
        return self.mean_s + 4 * self.deviation_s


@dataclass
class Pace:
    """The steps that a Talker replica has made."""

    steps: int = 0
    step_s: float = 0.0
    """How long one takes, of late."""

    def stepped(self, step_s: float) -> None:
        """It made another one."""
        self.steps += 1
        self.step_s += (step_s - self.step_s) / min(self.steps, 8)


def next_chunk_frames(
    pending: int, spare_s: float, first: bool, complete: bool, pace: Pace, max_chunk_frames: int
) -> int:
    """Frames to send now, 0 to wait for more. Asked when a stream has no chunk in flight.

    `pending`: frames made and not sent. `spare_s`: seconds until the listener runs dry, less those that decoding takes;
    negative when it is too late already. `first`: nothing was sent yet. `complete`: the Talker makes no more frames.
    """
    if first:
        return min(pending, 1)
    if complete or not pending:
        return min(pending, max_chunk_frames)
    wanted = 1
    while 2 * wanted <= max_chunk_frames and 2 * wanted * pace.step_s <= SPENT_SHARE * spare_s:
        wanted *= 2
    # Behind its step a stream goes with half of what it wants, so that it falls in with the others.
    if pending < (wanted / 2 if pace.steps % wanted == 0 else 2 * wanted):
        return 0
    return 1 << (min(pending, max_chunk_frames).bit_length() - 1)
