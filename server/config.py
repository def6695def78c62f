"""All settings, and the only place that reads the environment.

Three layers, each over the one before: a YAML profile, environment variables (`DUOTONE_HTTP__PORT=80`, parts of a key
joined by `__`), flags of the command line. An unknown key in any of them is an error that names key and source.
"""

import copy
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError

from ..stages.cloning.config import CloningOptions
from ..stages.errors import ConfigurationError
from ..stages.pipeline import STAGES, Options, Orchestration, PipelineOptions, one_or_more

PREFIX = "DUOTONE_"
PROFILE_VARIABLE = "DUOTONE_CONFIG"
ORCHESTRATION_VARIABLE = "VLLM_OMNI_EVENT_DRIVEN_ORCH"
"""Rolls the orchestration back, or forward, whatever else is set: it stands over every layer."""
_SWITCH: dict[str, Orchestration] = {
    **dict.fromkeys(("1", "true", "yes", "on"), "event_driven"),
    **dict.fromkeys(("0", "false", "no", "off"), "polling"),
}
PACKAGE = Path(__file__).parent.parent
BUNDLED_VOICE = PACKAGE / "voices" / "lark"
PROFILES = PACKAGE / "configs"
_UNREADABLE = (yaml.YAMLError, ValueError, RecursionError)
"""What PyYAML raises: for a day that no month has, and for a tree too deep, Python's own."""
_NORMALISED_LANGUAGES = ("auto", "english")

Tree = dict[str, object]
"""Settings before they are checked: values are strings, numbers, lists or trees."""


def _sendable(keys: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
    if any(not key.get_secret_value() or set(key.get_secret_value()) & set(" \t\r\n") for key in keys):
        raise ValueError("a key is empty or holds white space")
    return keys


ApiKeyList = Annotated[tuple[SecretStr, ...], BeforeValidator(one_or_more), AfterValidator(_sendable)]


class HttpOptions(Options):
    """The listening socket and the limits that a client meets."""

    host: str = Field("127.0.0.1", min_length=1, description="0.0.0.0 listens on every network")
    port: int = Field(8000, ge=0, le=65_535, description="0 takes any free port")
    cors_origins: tuple[str, ...] = Field((), description="origins whose pages may call the server; `*` for all")
    api_keys: ApiKeyList = Field((), description="with any, all but reading needs one of them as Bearer")
    api_keys_file: Path | None = Field(None, description="further keys, one a line; `#` begins a comment")
    max_body_bytes: int = Field(1 << 20, ge=1024, description="larger request bodies are answered 413")
    body_timeout_s: float = Field(60.0, gt=0, description="requests whose body takes longer are answered 408")
    send_timeout_s: float = Field(60.0, gt=0, description="a client that takes nothing for so long is given up")
    encoder_threads: int = Field(4, ge=1, le=256, description="threads in which answers are compressed")
    live_idle_s: float = Field(
        120.0, gt=0, description="a live session that says nothing for so long, and has nothing said, is closed"
    )
    live_max_message_bytes: int = Field(
        1 << 16, ge=1024, description="larger messages end a live session; its first may be as large as a request body"
    )
    live_max_pending_chars: int = Field(
        16_384, ge=256, description="a live session of which more waits, counted as it is spoken, is ended"
    )
    drain_s: float = Field(10.0, ge=0, description="how long a stopping server lets answers in flight end")


def _on_or_off(value: object) -> object:
    """YAML reads a bare on or off as a truth."""
    return ("on" if value else "off") if isinstance(value, bool) else value


class TextOptions(Options):
    """The text front end: what happens to an input before it is spoken."""

    strip_markdown: bool = Field(True, description="remove headings, emphasis, links and the like, keep their text")
    strip_emoji: bool = Field(True, description="remove emoji, which are not to be spoken by name")
    normalise: Annotated[Literal["auto", "on", "off"], BeforeValidator(_on_or_off)] = Field(
        "auto", description="write numbers, dates and the like as English words; auto: for the bundled voice alone"
    )
    max_piece_chars: int = Field(240, ge=20, description="longer inputs are cut at sentences and spoken in pieces")
    frames_base: int = Field(50, ge=1, description="frames that a piece may take, however short it is")
    frames_per_char: int = Field(8, ge=1, description="frames more for each character, against a voice that babbles on")
    pause_s: float = Field(0.15, ge=0, le=10, description="silence between two pieces where a sentence ends")
    leading_silence: Literal["auto", "keep", "skip"] = Field(
        "auto",
        description="before an answer's first sound; skip leaves 40 ms, where the request sets no number of frames; "
        "auto: skip for the bundled voice alone",
    )
    silence_s: float = Field(0.2, gt=0, le=10, description="the answer to an input that holds nothing to speak")


class Settings(Options):
    """Everything that can be set."""

    model: str = Field(str(BUNDLED_VOICE), description="a checkpoint directory or a hub name; else the bundled voice")
    served_model_name: str | None = Field(None, description="what clients call it; by default the last part of `model`")
    model_aliases: tuple[str, ...] = Field(
        ("tts-1", "tts-1-hd", "gpt-4o-mini-tts"), description="further names that answer with the served model"
    )
    voice_aliases: dict[str, str] = Field(
        {}, description="name → voice of the model, over OpenAI's names, which take the model's voices in turn"
    )
    max_input_chars: int = Field(4096, ge=1, description="longer inputs are answered 400")
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    monitor_file: Path | None = Field(None, description="where every second of the monitor is written at the end")
    http: HttpOptions = HttpOptions()
    text: TextOptions = TextOptions()
    cloning: CloningOptions = CloningOptions()
    pipeline: PipelineOptions = PipelineOptions()

    @cached_property
    def serves_bundled_voice(self) -> bool:
        """Whether `model` is the voice that comes with the package, by whatever path."""
        return Path(self.model).resolve() == BUNDLED_VOICE.resolve()

    def max_body_bytes(self, recordings: bool) -> int:
        """The most that a request's body may hold; with a recording, in base64, which makes four bytes of three."""
        return self.http.max_body_bytes + (4 * math.ceil(self.cloning.max_audio_bytes / 3) if recordings else 0)

    @property
    def skips_leading_silence(self) -> bool:
        """Whether an answer begins with its first sound."""
        return self._chosen(self.text.leading_silence, "skip")

    def text_front(self, language: str) -> TextOptions:
        """The text front end for a request in a language of the model or `auto`; its `normalise` is on or off."""
        on = self._chosen(self.text.normalise, "on") and language.lower() in _NORMALISED_LANGUAGES
        return self.text.model_copy(update={"normalise": "on" if on else "off"})

    def _chosen(self, choice: str, yes: str) -> bool:
        """Whether a choice is made: `auto` makes it for the bundled voice alone."""
        return choice == yes or (choice == "auto" and self.serves_bundled_voice)


@dataclass(frozen=True)
class Layer:
    """Settings from one source. `where` begins an error's line: a file, `environment` or `command line`."""

    where: str
    tree: Tree


def load_settings(
    profile: str | None, flags: Mapping[str, object], environment: Mapping[str, str] = os.environ
) -> Settings:
    """The settings of a run. `flags` are dotted keys (`http.port`); `profile` is a file or a name under configs/.

    Raises ConfigurationError with one line for each thing that is wrong.
    """
    variables = {name: value for name, value in environment.items() if name.startswith(PREFIX) and value}
    named = variables.pop(PROFILE_VARIABLE, None)
    layers = [_profile_layer(path)] if (path := profile or named) else []
    layers.append(_layer("environment", {_key_of(name): _parsed(value) for name, value in variables.items()}))
    layers.append(_layer("command line", flags))
    layers.append(_layer("environment", _orchestration(environment.get(ORCHESTRATION_VARIABLE, ""))))
    tree: Tree = {}
    for layer in layers:
        _merge(tree, layer.tree, layer.where)
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        raise ConfigurationError("\n".join(_readable(error, layers))) from None


def parse_assignment(text: str) -> tuple[str, object]:
    """`http.port=80` as key and value. Raises ConfigurationError where there is no `=`."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise ConfigurationError(f"command line: --set {text}: expected KEY=VALUE")
    return key, _parsed(value)


def parse_profiler_config(text: str) -> dict[str, object]:
    """`--profiler-config`: JSON, one profiler for all stages or `{"talker": {…}}` for some; returns dotted settings.

    Raises ConfigurationError for text that is no JSON object.
    """
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"command line: --profiler-config: not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise ConfigurationError("command line: --profiler-config: expected an object")
    by_stage = parsed if parsed.keys() <= set(STAGES) else dict.fromkeys(STAGES, parsed)
    return {f"pipeline.{stage}.profiler_config": options for stage, options in by_stage.items()}


def _profile_layer(profile: str) -> Layer:
    path = Path(profile).expanduser()
    if not path.exists() and path.name == profile and not path.suffix:
        path = PROFILES / f"{profile}.yaml"
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {error}") from None
    except _UNREADABLE as error:
        raise ConfigurationError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if tree is None:
        return Layer(str(path), {})
    if not isinstance(tree, dict):
        raise ConfigurationError(f"{path}: expected keys and values, found {type(tree).__name__}")
    return Layer(str(path), tree)


def _layer(where: str, flat: Mapping[str, object]) -> Layer:
    tree: Tree = {}
    for key, value in flat.items():
        for part in reversed(key.split(".")):
            value = {part: value}
        assert isinstance(value, dict)
        _merge(tree, value, where)
    return Layer(where, tree)


def _orchestration(switch: str) -> dict[str, object]:
    """What the variable says, as a layer. Raises ConfigurationError for anything but a clear yes or no."""
    if not switch:
        return {}
    if switch.lower() not in _SWITCH:
        raise ConfigurationError(
            f"environment: {ORCHESTRATION_VARIABLE}={switch}: expected one of {', '.join(_SWITCH)}"
        )
    return {"pipeline.orchestration": _SWITCH[switch.lower()]}


def _key_of(variable: str) -> str:
    return variable.removeprefix(PREFIX).lower().replace("__", ".")


def _parsed(value: str) -> object:
    """A value written as text: lists and trees in YAML's short form, all else left for pydantic to convert."""
    if not value.startswith(("[", "{")):
        return value
    try:
        return yaml.safe_load(value)
    except _UNREADABLE:
        return value


def _merge(base: Tree, over: Mapping[str, object], where: str, above: str = "") -> None:
    """Raises ConfigurationError for a key that has a value in one place and keys below it in another."""
    for key, value in over.items():
        below = base.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            _merge(below, value, where, f"{above}{key}.")
        elif None not in (below, value) and isinstance(below, dict) != isinstance(value, dict):
            raise ConfigurationError(f"{where}: {above}{key}: a value in one place, keys below it in another")
        else:
            # Copied, since a later layer may be merged into it and error lines are traced in the layers themselves.
            base[key] = copy.deepcopy(value)


def _readable(error: ValidationError, layers: Sequence[Layer]) -> list[str]:
    lines = []
    for problem in error.errors(include_url=False):
        location = problem["loc"]
        text = "unknown key" if problem["type"] == "extra_forbidden" else problem["msg"]
        lines.append(f"{_where(location, layers)}: {'.'.join(map(str, location))}: {text}")
    return lines


def _where(location: Sequence[int | str], layers: Sequence[Layer]) -> str:
    """The layer whose value was read: of those that hold most of the key, the last."""
    deepest = max(reversed(layers), key=lambda layer: _depth(layer.tree, location))
    return deepest.where if _depth(deepest.tree, location) else "settings"


def _depth(node: object, location: Sequence[int | str]) -> int:
    for depth, part in enumerate(location):
        if not isinstance(node, dict) or part not in node:
            return depth
        node = node[part]
    return len(location)
