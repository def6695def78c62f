"""The recordings that requests speak with: one that a request brings along, or that of an uploaded voice."""

import asyncio
import base64
import binascii
import re

import httpx

from ..stages.cloning.cloner import Cloner
from ..stages.cloning.config import CloningOptions
from ..stages.cloning.messages import Recording
from ..stages.errors import RequestError
from ..stages.talker.prompt import Reference, Transcript
from .catalog import DEFAULT_VOICE, OPENAI_VOICES, Catalog
from .config import Settings
from .protocol import SpeechChoices, VoiceCard
from .uploaded_voices import UploadedVoice, UploadedVoices

_DATA_URL = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)
_FETCH_TIMEOUT_S = 20.0


class Cloning:
    """Finds a request's recording, and takes uploads. `listener` is None where the model does not clone."""

    def __init__(self, settings: Settings, catalog: Catalog, listener: Cloner | None) -> None:
        """Raises ConfigurationError for a folder of voices that cannot be read."""
        self._options = settings.cloning
        self._max_chars = settings.max_input_chars
        self._catalog = catalog
        self._listener = listener
        self._aliases = {name.lower(): target for name, target in settings.voice_aliases.items()}
        self._voices = UploadedVoices(settings.cloning if listener else CloningOptions())

    async def reference(self, choices: SpeechChoices) -> Reference | None:
        """What the prompt holds of a recording, None where the model speaks with voices of its own.

        Raises RequestError that names the field; StageFailed and NotReady when the recording cannot be encoded now.
        """
        text = self._text(choices.ref_text)
        if self._listener is None:
            asked = {"ref_audio": choices.ref_audio, "ref_text": text, "x_vector_only": choices.x_vector_only}
            for field, value in asked.items():
                if value is not None:
                    raise RequestError(f"the model {self._catalog.name!r} does not clone voices", field)
            return None
        if choices.ref_audio is None:
            if text is not None:
                raise RequestError("goes with `ref_audio`, which is not there", "ref_text")
            return self._of_voice(choices)
        if self._voices.find(choices.voice) is not None:
            raise RequestError(f"the voice {choices.voice!r} has a recording of its own", "ref_audio")
        if text is None and not choices.x_vector_only:
            raise RequestError("what the recording says is needed, unless `x_vector_only` is true", "ref_text")
        heard = await self._listener.listen(await self._audio(choices.ref_audio), "ref_audio")
        return _reference(heard, None if choices.x_vector_only else text)

    async def upload(self, name: str, audio: bytes, ref_text: str | None) -> UploadedVoice:
        """Add a voice. Raises as `reference` does."""
        if self._listener is None:
            raise RequestError(f"the model {self._catalog.name!r} does not clone voices", "audio_sample")
        text = self._text(ref_text)
        self._voices.check(name)
        return self._voices.add(name, await self._listener.listen(audio, "audio_sample"), text)

    def delete(self, name: str) -> UploadedVoice:
        """Forget an uploaded voice; who speaks with it goes on. Raises VoiceNotFound."""
        return self._voices.remove(name)

    def voice_cards(self) -> list[VoiceCard]:
        """The voices of the model or those uploaded, then the other names that lead to them."""
        own = [VoiceCard(id=voice.name, name=voice.name, voice=voice.name) for voice in self._voices]
        if self._listener is None or not own:
            return self._catalog.voice_cards()
        names = dict.fromkeys((*self._aliases, DEFAULT_VOICE, *OPENAI_VOICES))
        found = {name: self._find(name) for name in names if self._voices.find(name) is None}
        return own + [VoiceCard(id=name, name=name, voice=voice.name) for name, voice in found.items() if voice]

    def _of_voice(self, choices: SpeechChoices) -> Reference:
        voice = self._find(choices.voice)
        if voice is None:
            if known := ", ".join(card.name for card in self.voice_cards()) if len(self._voices) else "":
                raise RequestError(f"the voice {choices.voice!r} is unknown; there are: {known}", "voice")
            raise RequestError("the model needs a recording to speak like: here, or as an uploaded voice", "ref_audio")
        if voice.ref_text is None and choices.x_vector_only is False:
            raise RequestError(f"the voice {voice.name!r} was uploaded without `ref_text`", "x_vector_only")
        return _reference(voice.recording, None if choices.x_vector_only else voice.ref_text)

    def _find(self, name: str) -> UploadedVoice | None:
        """The uploaded voice behind a name; behind the names that every model answers to, the first."""
        voice = self._voices.find(name) or self._voices.find(self._aliases.get(name.lower(), ""))
        if voice is None and name.lower() in (DEFAULT_VOICE, *OPENAI_VOICES):
            return next(iter(self._voices), None)
        return voice

    def _text(self, ref_text: str | None) -> str | None:
        """Blank is none."""
        if ref_text is None or not ref_text.strip():
            return None
        if len(ref_text) > self._max_chars:
            raise RequestError(f"ref_text has {len(ref_text)} characters, more than {self._max_chars}", "ref_text")
        return ref_text

    async def _audio(self, ref_audio: str) -> bytes:
        """The bytes of a data URL, or of an URL whose host the operator allows."""
        if match := _DATA_URL.match(ref_audio):
            try:
                return base64.b64decode(ref_audio[match.end() :], validate=True)
            except (binascii.Error, ValueError):
                raise RequestError("the data URL does not hold base64", "ref_audio") from None
        if not ref_audio.startswith(("http://", "https://")):
            raise RequestError("expected a data URL: data:audio/wav;base64,…", "ref_audio")
        try:
            url = httpx.URL(ref_audio)
        except httpx.InvalidURL:
            raise RequestError("is no URL", "ref_audio") from None
        if url.host not in self._options.allowed_hosts:
            raise RequestError(f"nothing is fetched from {url.host!r}: send a data URL", "ref_audio")
        return await self._fetch(url)

    async def _fetch(self, url: httpx.URL) -> bytes:
        """No redirect is followed: it might lead anywhere."""
        audio = bytearray()
        try:
            async with (
                asyncio.timeout(_FETCH_TIMEOUT_S),
                httpx.AsyncClient() as client,
                client.stream("GET", url) as answer,
            ):
                if answer.status_code != httpx.codes.OK:
                    raise RequestError(f"{url.host} answers {answer.status_code}", "ref_audio")
                async for chunk in answer.aiter_bytes():
                    audio += chunk
                    if len(audio) > self._options.max_audio_bytes:
                        break  # Too large: the listener says so.
        except (httpx.HTTPError, TimeoutError) as error:
            raise RequestError(f"cannot be fetched: {type(error).__name__}", "ref_audio") from None
        return bytes(audio)


def _reference(heard: Recording, text: str | None) -> Reference:
    return Reference(heard.vector(), None if text is None else Transcript(text, heard.frames()))
