"""What the API process and the cloning process say over the latter's standard input and output.

A question is the bytes of a recording, an answer one of the structs here; either has its length in front.
"""

import struct
from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt

from ..types import CODEBOOKS

LENGTH = struct.Struct("<I")


class Ready(msgspec.Struct, tag=True):
    """The first answer, to no question: the encoders are loaded."""


class Refusal(msgspec.Struct, tag=True, frozen=True):
    """Why a recording cannot be used; as the first answer, why the process cannot work."""

    message: str


class Recording(msgspec.Struct, tag=True, frozen=True):
    """What a prompt holds of a voice: the x-vector, float32 [hidden], and the frames, int16 [frames, 16]."""

    x_vector: bytes
    codes: bytes

    def __post_init__(self) -> None:
        """Raises ValueError, where one is decoded msgspec.ValidationError: what is no number would break the Talker."""
        if not np.isfinite(self.vector()).all():
            raise ValueError("its x-vector holds what is no number")
        self.frames()  # Are they whole?

    def vector(self) -> npt.NDArray[np.float32]:
        return np.frombuffer(self.x_vector, "<f4")

    def frames(self) -> npt.NDArray[np.int16]:
        return np.frombuffer(self.codes, "<i2").reshape(-1, CODEBOOKS)


Answer = Ready | Refusal | Recording

_encoder = msgspec.msgpack.Encoder()
decode: Callable[[bytes], Answer] = msgspec.msgpack.Decoder(Answer).decode


def framed(part: bytes) -> bytes:
    """A part with its length in front."""
    return LENGTH.pack(len(part)) + part


def encode(answer: Answer) -> bytes:
    return framed(_encoder.encode(answer))
