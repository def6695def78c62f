"""The uploaded voices: what is kept of each is what a prompt needs, not the recording itself."""

import logging
import time
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import msgspec

from ..stages.cloning.config import CloningOptions
from ..stages.cloning.messages import Recording
from ..stages.errors import ConfigurationError, RequestError
from .errors import VoiceNotFound

log = logging.getLogger(__name__)

_SUFFIX = ".voice"


class UploadedVoice(msgspec.Struct, frozen=True):
    """Without `ref_text` it speaks from its x-vector alone."""

    name: str
    created_s: int
    recording: Recording
    ref_text: str | None


class UploadedVoices:
    """In the order of their upload; a name means the same in any case. Kept in a folder where one is set."""

    def __init__(self, options: CloningOptions) -> None:
        """Raises ConfigurationError for a folder that cannot be used; a file in it that holds no voice is left out."""
        self._most = options.max_voices
        self._folder = options.voices_dir
        voices = [] if self._folder is None else sorted(_read(self._folder), key=lambda voice: voice.created_s)
        self._voices = {voice.name.lower(): voice for voice in voices}

    def __iter__(self) -> Iterator[UploadedVoice]:
        return iter(self._voices.values())

    def __len__(self) -> int:
        return len(self._voices)

    def find(self, name: str) -> UploadedVoice | None:
        return self._voices.get(name.lower())

    def check(self, name: str) -> None:
        """Raises RequestError unless a voice of this name can be added."""
        if self.find(name) is not None:
            raise RequestError(f"there is a voice {name!r} already", "name")
        if len(self._voices) >= self._most:
            raise RequestError(f"there are {self._most} uploaded voices already: delete one", "name")

    def add(self, name: str, recording: Recording, ref_text: str | None) -> UploadedVoice:
        """Raises as `check` does: another upload may have been quicker."""
        self.check(name)
        voice = UploadedVoice(name, int(time.time()), recording, ref_text)
        if self._folder is not None:
            # Whoever stops the server meanwhile leaves a whole file or none.
            unnamed = self._file(name).with_suffix(".part")
            unnamed.write_bytes(msgspec.msgpack.encode(voice))
            unnamed.replace(self._file(name))
        self._voices[name.lower()] = voice
        return voice

    def remove(self, name: str) -> UploadedVoice:
        """The voice that is gone now. Raises VoiceNotFound."""
        voice = self._voices.pop(name.lower(), None)
        if voice is None:
            raise VoiceNotFound(f"there is no uploaded voice {name!r}")
        if self._folder is not None:
            self._file(name).unlink(missing_ok=True)
        return voice

    def _file(self, name: str) -> Path:
        """Named by a digest: a voice's name may be none that a file can have."""
        assert self._folder is not None
        return self._folder / (blake2b(name.lower().encode(), digest_size=16).hexdigest() + _SUFFIX)


def _read(folder: Path) -> Iterator[UploadedVoice]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = list(folder.glob(f"*{_SUFFIX}"))
    except OSError as error:
        raise ConfigurationError(f"cloning.voices_dir: {folder}: {error}") from None
    for file in files:
        try:
            yield msgspec.msgpack.decode(file.read_bytes(), type=UploadedVoice)
        except (OSError, msgspec.DecodeError) as error:
            log.error("cloning.voices_dir: %s is left out: %s", file, error)
