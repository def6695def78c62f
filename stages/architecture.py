"""The sizes that a checkpoint's configuration files give, under their published names.

Pure: nothing here reads a file or imports torch. `checkpoint.py` fills these classes and checks them.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec


@dataclass(frozen=True)
class RopeScaling:
    """`rope_scaling`. Its `mrope_section`s are all of equal rows: plain angles."""

    rope_type: Literal["default"] = "default"


@dataclass(frozen=True)
class TransformerConfig:
    """The sizes that every decoder-only transformer of the model has: Talker, code predictor and the codec's own.

    What has a default would ask for another computation than ours if it were another.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    hidden_act: Literal["silu"] = field(default="silu", kw_only=True)
    rope_scaling: RopeScaling | None = field(default=None, kw_only=True)
    attention_bias: bool = field(default=False, kw_only=True)
    use_sliding_window: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        """Raises ValueError, where one is decoded msgspec.ValidationError."""
        if self.attention_bias or self.use_sliding_window:
            raise ValueError("attention_bias and use_sliding_window are not supported")


@dataclass(frozen=True)
class CodePredictorConfig(TransformerConfig):
    """`code_predictor_config`: the decoder that completes a frame. `vocab_size`: entries of a codebook."""

    vocab_size: int
    num_code_groups: Literal[16]


@dataclass(frozen=True)
class TalkerConfig(TransformerConfig):
    """`talker_config`. `vocab_size` counts codec ids and control ids; `text_vocab_size` the tokenizer's ids."""

    vocab_size: int
    num_code_groups: Literal[16]
    text_hidden_size: int
    text_vocab_size: int
    codec_bos_id: int
    codec_eos_token_id: int
    codec_pad_id: int
    codec_think_id: int
    codec_nothink_id: int
    codec_think_bos_id: int
    codec_think_eos_id: int
    codec_language_id: dict[str, int]
    code_predictor_config: CodePredictorConfig
    spk_id: dict[str, int] = field(default_factory=dict)
    """Voice name → codec id; empty where the checkpoint has no voices of its own."""
    spk_is_dialect: dict[str, str | bool] = field(default_factory=dict)
    """Voice name → False, or the key of `codec_language_id` that the voice speaks by default."""


@dataclass(frozen=True)
class CodecConfig(TransformerConfig):
    """`decoder_config` of the speech tokenizer: Code2Wav. The transformer's sizes are its own, the others below.

    One frame becomes the product of `upsampling_ratios` (latent) and `upsample_rates` (waveform) samples.
    """

    codebook_dim: int
    codebook_size: int
    num_quantizers: Literal[16]
    latent_dim: int
    decoder_dim: int
    sliding_window: Annotated[int, msgspec.Meta(gt=1)]
    """A frame must see one before it."""
    upsample_rates: tuple[int, ...]
    upsampling_ratios: tuple[int, ...]
