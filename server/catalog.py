"""What clients may name: models, voices, languages. Resolves names, and lists models (voices.py: voices)."""

import time
from dataclasses import dataclass
from typing import Self

from fastapi import APIRouter

from ..stages.checkpoint import Checkpoint
from ..stages.errors import ConfigurationError, RequestError
from ..stages.talker.prompt import AUTO_LANGUAGE, DIALECT_SUFFIX
from ..stages.types import Sampling
from .config import Settings
from .errors import ERROR_RESPONSES, ModelNotFound
from .protocol import AudioModel, AudioModelList, ModelCard, ModelList, VoiceCard

OPENAI_VOICES = (
    *("alloy", "ash", "ballad", "coral", "echo", "fable", "onyx", "nova", "sage", "shimmer", "verse", "marin", "cedar"),
)
DEFAULT_VOICE = "default"


@dataclass(frozen=True)
class Model:
    """What the server needs to know of the checkpoint that it serves. Voices and languages are in the model's order."""

    voices: tuple[str, ...]
    languages: tuple[str, ...]
    takes_instructions: bool
    sampling: Sampling

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Self:
        """The facts as the checkpoint's files state them."""
        languages = checkpoint.talker.codec_language_id
        return cls(
            voices=tuple(checkpoint.talker.spk_id) if checkpoint.kind == "custom_voice" else (),
            languages=tuple(name for name in languages if not name.endswith(DIALECT_SUFFIX)),
            takes_instructions=checkpoint.takes_instructions,
            sampling=checkpoint.sampling,
        )


class Catalog:
    """The names of one served model. Raises ConfigurationError for a voice alias that leads nowhere."""

    def __init__(self, settings: Settings, model: Model) -> None:
        self.model = model
        self.name = served_name(settings)
        self.model_names = tuple(dict.fromkeys((self.name, *settings.model_aliases)))
        self.created_s = int(time.time())
        self._languages = {name.lower(): name for name in (AUTO_LANGUAGE, *model.languages)}
        self._aliases = _voice_aliases(settings, model)
        self._voices = self._aliases | {voice.lower(): voice for voice in model.voices}

    def check_model(self, name: str) -> None:
        """Raises ModelNotFound unless `name` is the served model or one of its aliases."""
        if name not in self.model_names:
            raise ModelNotFound(f"the model {name!r} is not served; there are: {', '.join(self.model_names)}", "model")

    def voice(self, name: str) -> str | None:
        """The model's voice behind a name, in any case; None from a model without voices, which accepts any name."""
        if not self.model.voices and name:
            return None
        voice = self._voices.get(name.lower())
        if voice is None:
            known = ", ".join(card.name for card in self.voice_cards())
            raise RequestError(f"the voice {name!r} is unknown; there are: {known}", "voice")
        return voice

    def language(self, name: str) -> str:
        """A language as the model spells it, or `auto`. Raises RequestError."""
        language = self._languages.get(name.lower())
        if language is None:
            known = ", ".join(self._languages.values())
            raise RequestError(f"the language {name!r} is unknown; there are: {known}", "language")
        return language

    def instructions(self, text: str | None) -> str | None:
        """An instruction that the model follows; a blank one is none. Raises RequestError where it would be ignored."""
        if text is None or not text.strip():
            return None
        if not self.model.takes_instructions:
            raise RequestError(f"the model {self.name!r} does not follow instructions", "instructions")
        return text

    def voice_cards(self) -> list[VoiceCard]:
        """The model's own voices, then the other names."""
        own = [VoiceCard(id=voice, name=voice, voice=voice) for voice in self.model.voices]
        names = self._aliases if self.model.voices else dict.fromkeys((DEFAULT_VOICE, *OPENAI_VOICES))
        taken = {voice.lower() for voice in self.model.voices}
        return own + [VoiceCard(id=name, name=name, voice=to) for name, to in names.items() if name not in taken]

    def model_card(self, name: str) -> ModelCard:
        """How /v1/models shows a name."""
        return ModelCard(id=name, created=self.created_s)


def served_name(settings: Settings) -> str:
    """What the served model is called: as the settings say, else the last part of its path or hub name."""
    return settings.served_model_name or settings.model.rstrip("/").rpartition("/")[2]


def _voice_aliases(settings: Settings, model: Model) -> dict[str, str]:
    """Name in lower case → voice of the model. Empty for a model without voices."""
    if not model.voices:
        return {}
    own = {voice.lower(): voice for voice in model.voices}
    aliases = {DEFAULT_VOICE: model.voices[0]}
    aliases |= {name: model.voices[index % len(model.voices)] for index, name in enumerate(OPENAI_VOICES)}
    for name, target in settings.voice_aliases.items():
        if target.lower() not in own:
            raise ConfigurationError(
                f"voice_aliases.{name}: the model has no voice {target!r}; there are: {', '.join(model.voices)}"
            )
        aliases[name.lower()] = own[target.lower()]
    return aliases


def catalog_router(catalog: Catalog) -> APIRouter:
    """The lists. None of them needs a key."""
    router = APIRouter(tags=["catalog"], responses={"4XX": ERROR_RESPONSES["4XX"]})

    @router.get("/v1/models", summary="The names that requests may give as `model`")
    async def models() -> ModelList:
        return ModelList(data=[catalog.model_card(name) for name in catalog.model_names])

    # A path, since a hub's name that an operator serves under holds a slash.
    @router.get("/v1/models/{name:path}", summary="One of them")
    async def model(name: str) -> ModelCard:
        catalog.check_model(name)
        return catalog.model_card(name)

    @router.get("/v1/audio/models", summary="The models that speak: all of them")
    async def audio_models() -> AudioModelList:
        return AudioModelList(models=[AudioModel(id=name) for name in catalog.model_names])

    return router
