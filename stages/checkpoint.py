"""Reading a checkpoint directory in the published format into typed configuration, checked before any worker starts.

Everything that is wrong with a checkpoint is a CheckpointError that names the file and the key. No torch here: that the
tensors are those that the configuration asks for, the workers find out when they load them.
"""

from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec

from .architecture import CodecConfig, TalkerConfig
from .cloning.config import CodecEncoderConfig, SpeakerEncoderConfig
from .errors import CheckpointError
from .pipeline import PIPELINES
from .types import SAMPLES_PER_FRAME, Sampling
from .weights import WeightIndex

Kind = Literal["custom_voice", "voice_design", "base"]

CODEC_FOLDER = "speech_tokenizer"
TOKENIZER_FILES = ("vocab.json", "merges.txt", "tokenizer_config.json")
HUB_PATTERNS = ["*.json", "*.txt", "*.safetensors"]
CONTROL_IDS = 1024
"""The last ids of the Talker's vocabulary, which are no codes: all but the end are masked when it samples."""
SIZE_WITH_INSTRUCTIONS = "1b7"
"""Of the published models with voices of their own, the one that was trained to follow instructions."""


@dataclass(frozen=True)
class TextTokens:
    """Ids of the control tokens in the text vocabulary."""

    im_start_token_id: int
    im_end_token_id: int
    tts_bos_token_id: int
    tts_eos_token_id: int
    tts_pad_token_id: int


@dataclass(frozen=True)
class Checkpoint:
    """What the files of a checkpoint directory say; the weights are indexed, not loaded.

    `sampling` holds generation_config.json's defaults (its `seed` means nothing): temperature 0 where they say greedy.
    """

    directory: Path
    model_type: str
    kind: Kind
    size: str
    text_tokens: TextTokens
    talker: TalkerConfig
    codec: CodecConfig
    speaker_encoder: SpeakerEncoderConfig
    codec_encoder: CodecEncoderConfig
    sampling: Sampling
    weights: WeightIndex
    """`talker.*`, and in `base` checkpoints `speaker_encoder.*`."""
    codec_weights: WeightIndex
    """`decoder.*` and `encoder.*` of the speech tokenizer."""

    @property
    def clones(self) -> bool:
        """Whether it speaks with the voice of a recording, and only so."""
        return self.kind == "base"

    @property
    def takes_instructions(self) -> bool:
        """Whether the model was trained to follow an instruction."""
        follows = self.kind == "custom_voice" and self.size == SIZE_WITH_INSTRUCTIONS
        return follows or self.kind == "voice_design"


def locate(model: str) -> Path:
    """The directory of a checkpoint: a local one, or a hub name, downloaded (with progress bars) or found in the cache.

    Raises CheckpointError that says what was tried.
    """
    directory = Path(model).expanduser()
    if directory.is_dir():
        return directory
    if model.startswith((".", "/", "~")):
        raise CheckpointError(f"{model}: there is no such directory")
    # Deferred: it brings in an HTTP client, which a local checkpoint never needs.
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, allow_patterns=HUB_PATTERNS))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{model}: no such local directory, and as a hub name it failed: {error}") from error


def read_checkpoint(directory: Path) -> Checkpoint:
    """Read and check a checkpoint directory: configuration, tokenizer files, and the headers of whole weight files.

    Fast for any size. Raises CheckpointError.
    """
    config_file, codec_file = directory / "config.json", directory / CODEC_FOLDER / "config.json"
    model_type = _decode(config_file, _ModelType).model_type
    _require(model_type in PIPELINES, config_file, "model_type", f"is {model_type!r}, not one of {sorted(PIPELINES)}")
    config, codec_config = _decode(config_file, _ConfigFile), _decode(codec_file, _CodecFile)
    text_tokens = _decode(config_file, TextTokens)
    _check_talker(config_file, config.talker_config, text_tokens)
    _check_codec(codec_file, codec_config, config.talker_config)
    if config.tts_model_type == "base":
        _check_encoders(config_file, config, codec_file, codec_config)
    for name in TOKENIZER_FILES:
        _require((directory / name).is_file(), directory, name, "is missing")
    return Checkpoint(
        directory=directory,
        model_type=model_type,
        kind=config.tts_model_type,
        size=config.tts_model_size,
        text_tokens=text_tokens,
        talker=config.talker_config,
        codec=codec_config.decoder_config,
        speaker_encoder=config.speaker_encoder_config,
        codec_encoder=codec_config.encoder_config,
        sampling=_sampling(_decode(directory / "generation_config.json", _GenerationFile)),
        weights=WeightIndex.read(directory),
        codec_weights=WeightIndex.read(directory / CODEC_FOLDER),
    )


class _ModelType(msgspec.Struct):
    model_type: str


class _ConfigFile(msgspec.Struct):
    tokenizer_type: Literal["qwen3_tts_tokenizer_12hz"]
    tts_model_type: Kind
    tts_model_size: str
    talker_config: TalkerConfig
    speaker_encoder_config: SpeakerEncoderConfig = SpeakerEncoderConfig()


class _CodecFile(msgspec.Struct):
    model_type: Literal["qwen3_tts_tokenizer_12hz"]
    decoder_config: CodecConfig
    output_sample_rate: Literal[24000]
    decode_upsample_rate: Literal[1920]
    encoder_config: CodecEncoderConfig = CodecEncoderConfig()


_Positive = Annotated[float, msgspec.Meta(gt=0)]
_NotNegative = Annotated[float, msgspec.Meta(ge=0)]
_Probability = Annotated[float, msgspec.Meta(gt=0, le=1)]
_Count = Annotated[int, msgspec.Meta(ge=0)]


class _GenerationFile(msgspec.Struct):
    """generation_config.json; what it leaves out has the published models' value."""

    do_sample: bool = True
    temperature: _NotNegative = 0.9
    top_k: _Count = 50
    top_p: _Probability = 1.0
    repetition_penalty: _Positive = 1.05
    max_new_tokens: Annotated[int, msgspec.Meta(ge=1)] = 2048
    subtalker_dosample: bool = True
    subtalker_temperature: _NotNegative = 0.9
    subtalker_top_k: _Count = 50
    subtalker_top_p: _Probability = 1.0


_T = TypeVar("_T")


def _decode(file: Path, kind: type[_T]) -> _T:
    """A JSON file as `kind`; keys that `kind` does not have are ignored, a missing or ill-typed one is an error."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise CheckpointError(f"{file}: {error}") from error


def _require(condition: bool, file: Path, key: str, problem: str) -> None:
    if not condition:
        raise CheckpointError(f"{file}: {key} {problem}")


def _sampling(generation: _GenerationFile) -> Sampling:
    return Sampling(
        seed=0,
        temperature=generation.temperature if generation.do_sample else 0.0,
        top_k=generation.top_k,
        top_p=generation.top_p,
        repetition_penalty=generation.repetition_penalty,
        max_new_frames=generation.max_new_tokens,
        subtalker_temperature=generation.subtalker_temperature if generation.subtalker_dosample else 0.0,
        subtalker_top_k=generation.subtalker_top_k,
        subtalker_top_p=generation.subtalker_top_p,
    )


def _check_talker(file: Path, talker: TalkerConfig, tokens: TextTokens) -> None:
    """Every id must lie in the table that it indexes: one beyond it would fail in a worker, or go unseen."""
    predictor = talker.code_predictor_config
    sampled = talker.vocab_size - CONTROL_IDS
    enough = 0 < sampled <= predictor.vocab_size
    _require(enough, file, "talker_config.vocab_size", f"leaves {sampled} codes, a codebook has {predictor.vocab_size}")
    eos = talker.codec_eos_token_id
    _require(eos >= sampled, file, "talker_config.codec_eos_token_id", f"is {eos}, which is one of {sampled} codes")
    codec_ids = {name: id for name, id in asdict(talker).items() if name.startswith("codec_") and isinstance(id, int)}
    codec_ids |= {f"codec_language_id.{language}": id for language, id in talker.codec_language_id.items()}
    codec_ids |= {f"spk_id.{voice}": id for voice, id in talker.spk_id.items()}
    for name, id in codec_ids.items():
        inside = 0 <= id < talker.vocab_size
        _require(inside, file, f"talker_config.{name}", f"is {id}, not in 0 … {talker.vocab_size - 1}")
    for name, id in asdict(tokens).items():
        inside = 0 <= id < talker.text_vocab_size
        _require(inside, file, name, f"is {id}, not in 0 … {talker.text_vocab_size - 1}")
    for voice, dialect in talker.spk_is_dialect.items():
        known = dialect is False or dialect in talker.codec_language_id
        _require(known, file, f"talker_config.spk_is_dialect.{voice}", f"is {dialect!r}, no key of codec_language_id")


def _check_codec(file: Path, codec: _CodecFile, talker: TalkerConfig) -> None:
    decoder = codec.decoder_config
    entries, wanted = decoder.codebook_size, talker.code_predictor_config.vocab_size
    _require(entries == wanted, file, "decoder_config.codebook_size", f"is {entries}, not {wanted}")
    samples = prod(decoder.upsample_rates) * prod(decoder.upsampling_ratios)
    key = "decoder_config.upsample_rates times upsampling_ratios"
    _require(samples == SAMPLES_PER_FRAME, file, key, f"is {samples}, not {SAMPLES_PER_FRAME}")


def _check_encoders(file: Path, config: _ConfigFile, codec_file: Path, codec: _CodecFile) -> None:
    """What cloning needs; that the weights fit, the cloning process finds out."""
    x_vector, hidden = config.speaker_encoder_config.enc_dim, config.talker_config.hidden_size
    _require(x_vector == hidden, file, "speaker_encoder_config.enc_dim", f"is {x_vector}, the Talker's is {hidden}")
    entries, wanted = codec.encoder_config.codebook_size, codec.decoder_config.codebook_size
    key = "encoder_config.codebook_size"
    _require(entries == wanted, codec_file, key, f"is {entries}, the decoder's is {wanted}")
    samples = 2 * prod(codec.encoder_config.upsampling_ratios)
    key = "encoder_config.upsampling_ratios"
    _require(samples == SAMPLES_PER_FRAME, codec_file, key, f"make frames of {samples} samples")
