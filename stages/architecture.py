"""The sizes that a checkpoint's configuration files give, under their published names.

Pure: nothing here reads a file or imports torch. `checkpoint.py` fills these classes and checks them.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class TransformerConfig:
    """The sizes that every decoder-only transformer of the model has: Talker, code predictor and the codec's own."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float


@dataclass(frozen=True)
class CodePredictorConfig(TransformerConfig):
    """`code_predictor_config`: the decoder that completes a frame. `vocab_size`: entries of a codebook."""

    vocab_size: int
    num_code_groups: int


@dataclass(frozen=True)
class TalkerConfig(TransformerConfig):
    """`talker_config`. `vocab_size` counts codec ids and control ids; `text_vocab_size` the tokenizer's ids."""

    vocab_size: int
    num_code_groups: int
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
    num_quantizers: int
    latent_dim: int
    decoder_dim: int
    sliding_window: int
    upsample_rates: tuple[int, ...]
    upsampling_ratios: tuple[int, ...]
