"""How many frames a stream sends to Code2Wav next: a pure decision, since samples are the same to rounding.

Small chunks bring the first sound early, large ones cost less a frame. So the first chunk is one frame, and the next
ones are as large as the listener's lead allows: how much audio there is beyond what real time has played. Sizes are
powers of two, so that streams of one size are decoded together.
"""

SPENT_SHARE = 0.25
"""How much of its spare lead a stream spends on collecting a chunk; the rest is for steps that take longer."""


class Estimate:
    """A duration as it was of late: its mean, and how far from it values lie (TCP knows its round trips so)."""

    def __init__(self) -> None:
        self.mean_s = 0.0
        self._deviation_s = 0.0

    def observe(self, value_s: float) -> None:
        """Another one."""
        if not self.mean_s:
            self.mean_s, self._deviation_s = value_s, value_s / 2
        error_s = value_s - self.mean_s
        self.mean_s += error_s / 8
        self._deviation_s += (abs(error_s) - self._deviation_s) / 4

    @property
    def upper_s(self) -> float:
        """What it hardly ever exceeds."""
        return self.mean_s + 4 * self._deviation_s


def next_chunk_frames(
    pending: int, spare_s: float, first: bool, complete: bool, step_s: float, max_chunk_frames: int
) -> int:
    """Frames to send now, 0 to wait for more. Asked when a stream has no chunk in flight.

    `pending`: frames made and not sent. `spare_s`: seconds until the listener runs dry, less those that decoding takes;
    negative when it is too late already. `first`: nothing was sent yet. `complete`: the Talker makes no more frames.
    `step_s`: in which it makes one.
    """
    if first:
        return min(pending, 1)
    if complete:
        return min(pending, max_chunk_frames)
    wanted = 1
    while 2 * wanted <= max_chunk_frames and 2 * wanted * step_s <= SPENT_SHARE * spare_s:
        wanted *= 2
    if pending < wanted:
        return 0
    return 1 << (min(pending, max_chunk_frames).bit_length() - 1)
