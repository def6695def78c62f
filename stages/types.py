"""The nouns that every part of the pipeline shares: frames, prompt plans, sampling parameters."""

import msgspec
import numpy as np
import numpy.typing as npt

CODEBOOKS = 16
SAMPLE_RATE = 24_000
SAMPLES_PER_FRAME = 1_920
SAMPLE_BYTES = 2
FRAME_S = SAMPLES_PER_FRAME / SAMPLE_RATE

NO_CODE = -1
"""Stands in a prompt row where a position has no codec term."""


class Sampling(msgspec.Struct, frozen=True):
    """How codes are drawn. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 mean no cut.

    The `subtalker_*` set belongs to the code predictor (codebooks 1 … 15), the rest to codebook 0.
    """

    seed: int
    temperature: float = 0.9
    top_k: int = 50
    top_p: float = 1.0
    repetition_penalty: float = 1.05
    min_new_frames: int = 2
    max_new_frames: int = 2048
    subtalker_temperature: float = 0.9
    subtalker_top_k: int = 50
    subtalker_top_p: float = 1.0


class PromptPlan(msgspec.Struct, frozen=True):
    """A prompt as integers, made in the API process; each engine embeds it on its own device.

    `rows` is int32 [positions, 1 + CODEBOOKS], little-endian: the text id, then the ids of up to 16 codebooks
    (book 0 indexes the talker's codec embedding, control ids included; books 1 … 15 the predictor's), NO_CODE where
    there is none. A position's input is the projected text embedding plus the sum of its code embeddings.
    `trailing_text_ids` are the text terms of the first generated frames (streaming text); after them comes `tts_pad`.
    `speaker` is a float32 [hidden] x-vector added at row `speaker_row`, or None.
    """

    rows: bytes
    trailing_text_ids: list[int] = []
    speaker: bytes | None = None
    speaker_row: int = 0

    @property
    def positions(self) -> int:
        """Number of prompt positions."""
        return len(self.rows) // (4 * (1 + CODEBOOKS))

    @property
    def tokens(self) -> int:
        """What the prompt counts for in a request's usage: its positions and the text that follows them."""
        return self.positions + len(self.trailing_text_ids)

    @property
    def reference_frames(self) -> bytes:
        """The frames of the recording that a cloning prompt holds, int16 [frames, 16], little-endian; mostly none."""
        if self.speaker is None:
            return b""
        codes = self.row_ids()[:, 1:]
        frames: bytes = codes[codes[:, -1] != NO_CODE].astype("<i2").tobytes()
        return frames

    def row_ids(self) -> npt.NDArray[np.int32]:
        """The rows as an array, int32 [positions, 1 + CODEBOOKS]; a view of the bytes, not writable."""
        return np.frombuffer(self.rows, dtype="<i4").reshape(-1, 1 + CODEBOOKS)
