"""The cloning process: loads both encoders, then answers one recording after the other.

Started as `python -m duotone.stages.cloning.worker SPEC`. It ends with its standard input, which the parent holds.
"""

import os
import resource
import signal
import sys
from typing import BinaryIO

import torch

from ..checkpoint import Checkpoint, read_checkpoint
from ..errors import DuotoneError, RequestError
from .codec_encoder import CodecEncoder
from .config import CloningSpec
from .messages import LENGTH, Answer, Ready, Recording, Refusal, encode
from .recording import read_recording
from .speaker_encoder import SpeakerEncoder

_MEMORY_BYTES, _MEMORY_BYTES_PER_S = 4 << 30, 64 << 20
"""What PyTorch and the published encoders take, and a second of a recording, each with room to spare."""


class Encoders:
    """Both encoders of a `base` checkpoint in float32 on the CPU. Raises CheckpointError for what is missing."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        speaker, codec = SpeakerEncoder(checkpoint.speaker_encoder), CodecEncoder(checkpoint.codec_encoder)
        self._speaker = checkpoint.weights.fill(speaker, "speaker_encoder.", torch.float32)
        # The files hold more: codebooks beyond the sixteenth, marks of training.
        self._codec = checkpoint.codec_weights.fill(codec, "encoder.", torch.float32)

    @torch.inference_mode()
    def listen(self, audio: bytes, longest_s: float) -> Recording:
        """Raises RequestError without a field."""
        samples = torch.from_numpy(read_recording(audio, longest_s))
        x_vector, codes = self._speaker(samples), self._codec(samples)
        try:
            return Recording(x_vector.numpy().astype("<f4").tobytes(), codes.numpy().astype("<i2").tobytes())
        except ValueError as error:
            raise RequestError(str(error)) from None


def _read(questions: BinaryIO) -> bytes | None:
    """The next recording, None when there will be none."""
    length = questions.read(LENGTH.size)
    return questions.read(*LENGTH.unpack(length)) if length else None


def main() -> None:
    """The process."""
    # The terminal's Ctrl-C reaches the whole group; the server decides when this ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    spec = CloningSpec.model_validate_json(sys.argv[1])
    torch.set_num_threads(spec.options.threads)
    # Whatever a hostile file makes libav ask for, it is this process that fails, and none beside it.
    memory_bytes = _MEMORY_BYTES + round(_MEMORY_BYTES_PER_S * spec.options.max_audio_s)
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0)
    # What a library prints must not stand among the answers.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def say(answer: Answer) -> None:
        answers.write(encode(answer))

    try:
        encoders = Encoders(read_checkpoint(spec.checkpoint))
    except DuotoneError as error:
        say(Refusal(str(error)))
        sys.exit(1)
    say(Ready())
    while (audio := _read(sys.stdin.buffer)) is not None:
        try:
            say(encoders.listen(audio, spec.options.max_audio_s))
        except RequestError as error:
            say(Refusal(str(error)))


if __name__ == "__main__":
    main()
