"""What travels over HTTP: the speech request with its checks, and the answers, as documented at /docs.

Nothing is coerced (`"1.0"` is no number, `true` no integer), `null` means absent, and unknown fields are ignored.
"""

from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

ResponseFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]

MAX_SEED = 2**63 - 1
_LEAST_TEMPERATURE, _MOST_TEMPERATURE = 0.01, 2.0

_VOICE_SCHEMA: dict[str, object] = {
    "anyOf": [
        {"type": "string"},
        {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
    ]
}

_EXAMPLES: list[JsonValue] = [
    {"model": "tts-1", "voice": "alloy", "input": "Good morning! The kettle is on."},
    {"model": "tts-1", "voice": "alloy", "input": "As one file.", "response_format": "wav", "stream": False, "seed": 7},
    {"model": "gpt-4o-mini-tts", "voice": "ash", "input": "In events, and fast.", "stream_format": "sse", "speed": 1.5},
]


def _voice_name(value: object) -> object:
    """OpenAI's two ways to name a voice: the name itself, or an object that holds it as `id`."""
    if isinstance(value, dict):
        value = value.get("id")
    if not isinstance(value, str):
        raise ValueError('expected a name, or an object {"id": name}')
    return value


def _valid_unicode(text: str) -> str:
    """JSON can escape half a surrogate pair, which is no character and which nothing can encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("holds half of a surrogate pair, which is no character") from None
    return text


Text = Annotated[str, AfterValidator(_valid_unicode)]


def _zero_or_more_than_a_trace(temperature: float) -> float:
    """Logits divided by next to nothing are infinite, and nothing can be drawn from them."""
    if not (temperature == 0 or _LEAST_TEMPERATURE <= temperature <= _MOST_TEMPERATURE):
        raise ValueError(f"Input should be 0, or from {_LEAST_TEMPERATURE:g} to {_MOST_TEMPERATURE:g}")
    return temperature


Temperature = Annotated[
    float,
    AfterValidator(_zero_or_more_than_a_trace),
    WithJsonSchema(
        {"anyOf": [{"const": 0}, {"type": "number", "minimum": _LEAST_TEMPERATURE, "maximum": _MOST_TEMPERATURE}]}
    ),
]


class SpeechChoices(BaseModel):
    """How something is to be spoken, whatever it is and however it is sent."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)

    model: str = Field(description="the served model or one of its aliases, see /v1/models")
    voice: Annotated[str, BeforeValidator(_voice_name), WithJsonSchema(_VOICE_SCHEMA)] = Field(
        "default", description="one of /v1/audio/voices, in any case; `default` is the model's first voice"
    )
    instructions: Text | None = Field(None, description="how to speak, where the model follows instructions")
    response_format: ResponseFormat = Field(
        "mp3", description="`opus` comes in Ogg, `aac` in ADTS, `pcm` is 16 bit little-endian without a header"
    )
    speed: float = Field(1.0, ge=0.25, le=4.0, description="how fast it is spoken; the pitch stays")
    language: str = Field("auto", description="a language of the model, in any case")
    seed: int | None = Field(
        None, ge=0, le=MAX_SEED, description="the same request with it gives the same codes; random if absent"
    )
    temperature: Temperature | None = Field(None, description="0 is greedy; the checkpoint's own if absent")
    top_k: int | None = Field(None, ge=0, le=65_536, description="0 is no cut; the checkpoint's own if absent")
    top_p: float | None = Field(None, gt=0, le=1, description="1 is no cut; the checkpoint's own if absent")
    repetition_penalty: float | None = Field(None, ge=0.1, le=10, description="the checkpoint's own if absent")
    max_new_frames: int | None = Field(
        None, ge=1, le=1_000_000, description="most frames of 80 ms in the answer; from the text's length if absent"
    )
    min_new_frames: int | None = Field(
        None, ge=0, le=1_000_000, description="least frames of each piece that is spoken; 2 if absent"
    )
    non_streaming_mode: bool | None = Field(
        None, description="whether the prompt holds the whole text; the way that fits the kind of checkpoint if absent"
    )

    ref_audio: Text | None = Field(
        None,
        description="a recording to speak like, where the model clones voices: data:audio/wav;base64,…",
        json_schema_extra={"pattern": "^(data:|https?://)"},
    )
    ref_text: Text | None = Field(None, description="what the recording says; needed unless `x_vector_only` is true")
    x_vector_only: bool | None = Field(
        None, description="take the sound of the voice alone from the recording, not its manner too"
    )

    @model_validator(mode="before")
    @classmethod
    def _null_means_absent(cls, fields: object) -> object:
        if not isinstance(fields, dict):
            return fields
        return {name: value for name, value in fields.items() if value is not None}

    @field_validator("min_new_frames")
    @classmethod
    def _least_within_most(cls, least: int | None, info: ValidationInfo) -> int | None:
        most = info.data.get("max_new_frames")
        if least is not None and most is not None and least > most:
            raise ValueError("must not be above max_new_frames")
        return least


class SpeechRequest(SpeechChoices):
    """The body of POST /v1/audio/speech. `null` stands for an absent field, and unknown fields are ignored."""

    model_config = ConfigDict(json_schema_extra={"examples": _EXAMPLES})

    input: Text = Field(
        description="the text to speak; one without letters or digits is answered with a short silence",
        json_schema_extra={"minLength": 1, "pattern": r"\S"},
    )
    stream_format: Literal["audio", "sse"] = Field(
        "audio", description="`sse` sends the audio as server-sent events, and at the end what it took"
    )
    stream: bool = Field(True, description="`false` asks for one complete file with Content-Length")

    @field_validator("input")
    @classmethod
    def _not_blank(cls, text: str) -> str:
        if not text.strip():
            raise ValueError("there is no text to speak")
        return text


class ErrorBody(BaseModel):
    """What went wrong, in OpenAI's terms."""

    message: str
    type: str = Field(examples=["invalid_request_error"])
    param: str | None = Field(description="the field at fault, if one is")
    code: str | None = Field(examples=["invalid_value"])


class ErrorEnvelope(BaseModel):
    """The body of every answer that is not a success, on every route."""

    error: ErrorBody


class ModelCard(BaseModel):
    """A name that requests may give as `model`."""

    id: str
    object: Literal["model"] = "model"
    created: int = Field(description="seconds since 1970 at which the server read the model")
    owned_by: str = "duotone"


class ModelList(BaseModel):
    """The answer of /v1/models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class VoiceCard(BaseModel):
    """A name that requests may give as `voice`."""

    id: str
    name: str
    voice: str | None = Field(description="the model's or uploaded voice behind the name; null where there are none")


class VoiceList(BaseModel):
    """The answer of /v1/audio/voices: the model's own or uploaded voices, then the other names that it answers to."""

    voices: list[VoiceCard]


class NewVoice(BaseModel):
    """The answer to an upload: `id` is what requests give as `voice`."""

    id: str
    object: Literal["audio.voice"] = "audio.voice"
    created_at: int = Field(description="seconds since 1970")
    name: str
    type: Literal["audio_sample"] = "audio_sample"


class VoiceDeleted(BaseModel):
    """The answer to a voice's deletion."""

    id: str
    object: Literal["audio.voice.deleted"] = "audio.voice.deleted"
    deleted: Literal[True] = True


class AudioModel(BaseModel):
    """A name in /v1/audio/models."""

    id: str


class AudioModelList(BaseModel):
    """The answer of /v1/audio/models."""

    models: list[AudioModel]


class Health(BaseModel):
    """The answer of the probes when all is well."""

    status: Literal["ok"] = "ok"


class ProfileRequest(BaseModel):
    """The optional body of /start_profile and /stop_profile."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    stages: list[Text] | None = Field(
        None, min_length=1, description="all configured stages, or all that are profiled, if absent"
    )


class ProfileStarted(BaseModel):
    """The answer of /start_profile."""

    replicas: list[str] = Field(description="the workers that are profiled now")


class ProfileStopped(BaseModel):
    """The answer of /stop_profile."""

    files: dict[str, list[str]] = Field(description="worker → the files it has written")


class Usage(BaseModel):
    """Prompt positions in, frames of 80 ms out."""

    input_tokens: int
    output_tokens: int
    total_tokens: int

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            total_tokens=self.total_tokens + other.total_tokens,
        )


class AudioDelta(BaseModel):
    """A server-sent event that carries the next bytes of the audio, in base64."""

    type: Literal["speech.audio.delta"] = "speech.audio.delta"
    audio: str


class AudioDone(BaseModel):
    """The last server-sent event of an answer that was spoken to its end."""

    type: Literal["speech.audio.done"] = "speech.audio.done"
    usage: Usage
