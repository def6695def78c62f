"""How many frames a stream sends to Code2Wav next: a pure decision, since chunk sizes never change a sample.

Small chunks bring the first sound early, large ones cost less a frame. So the first chunk is one frame, and the next
ones grow with the lead: how much audio the listener has beyond what real time has played.
"""

from .types import FRAME_S


def next_chunk_frames(pending: int, lead_s: float, first: bool, complete: bool, max_chunk_frames: int) -> int:
    """Frames to send now, 0 to wait for more. Asked when a stream has no chunk in flight.

    `pending`: frames made and not sent. `lead_s`: seconds until the listener runs dry, negative when already dry.
    `first`: nothing was sent yet. `complete`: the Talker makes no more frames.
    """
    if first:
        return min(pending, 1)
    if complete:
        return min(pending, max_chunk_frames)
    # Half the lead is spent on collecting frames, the other half is left for decoding them.
    worthwhile = max(1, min(max_chunk_frames, int(lead_s / FRAME_S / 2)))
    if pending < worthwhile:
        return 0
    # Code2Wav decodes powers of two; a rest is cheaper as part of the next chunk than as a step of its own.
    return 1 << (min(pending, max_chunk_frames).bit_length() - 1)
