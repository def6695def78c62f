"""The sizes that a checkpoint's configuration files give, under their published names, and the tensors that follow.

Pure: nothing here reads a file or imports torch. `checkpoint.py` fills these classes and checks them.
"""

from dataclasses import dataclass, field

Shapes = dict[str, tuple[int, ...]]
"""Tensor names, as in the safetensors files, and the shapes that they must have."""


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


def talker_shapes(config: TalkerConfig) -> Shapes:
    """Every `talker.*` tensor of the model directory, the code predictor's included."""
    hidden, text = config.hidden_size, config.text_hidden_size
    shapes: Shapes = {
        "talker.model.text_embedding.weight": (config.text_vocab_size, text),
        "talker.model.codec_embedding.weight": (config.vocab_size, hidden),
        "talker.text_projection.linear_fc1.weight": (text, text),
        "talker.text_projection.linear_fc1.bias": (text,),
        "talker.text_projection.linear_fc2.weight": (hidden, text),
        "talker.text_projection.linear_fc2.bias": (hidden,),
        "talker.codec_head.weight": (config.vocab_size, hidden),
    }
    shapes |= _transformer_shapes("talker.model.", config) | _qk_norm_shapes("talker.model.", config)
    return shapes | _code_predictor_shapes("talker.code_predictor.", config.code_predictor_config, hidden)


def _code_predictor_shapes(prefix: str, config: CodePredictorConfig, talker_hidden: int) -> Shapes:
    hidden = config.hidden_size
    shapes = _transformer_shapes(f"{prefix}model.", config) | _qk_norm_shapes(f"{prefix}model.", config)
    for book in range(config.num_code_groups - 1):
        shapes[f"{prefix}model.codec_embedding.{book}.weight"] = (config.vocab_size, talker_hidden)
        shapes[f"{prefix}lm_head.{book}.weight"] = (config.vocab_size, hidden)
    if hidden != talker_hidden:  # no projection is stored where none is needed
        shapes[f"{prefix}small_to_mtp_projection.weight"] = (hidden, talker_hidden)
        shapes[f"{prefix}small_to_mtp_projection.bias"] = (hidden,)
    return shapes


def codec_shapes(config: CodecConfig) -> Shapes:
    """Every `decoder.*` tensor of the speech tokenizer's directory."""
    hidden, latent = config.hidden_size, config.latent_dim
    transformer = "decoder.pre_transformer."
    shapes: Shapes = {
        **_quantizer_shapes("decoder.quantizer.rvq_first.", config, books=1),
        **_quantizer_shapes("decoder.quantizer.rvq_rest.", config, books=config.num_quantizers - 1),
        **_conv_shapes("decoder.pre_conv.", (latent, config.codebook_dim, 3)),
        f"{transformer}input_proj.weight": (hidden, latent),
        f"{transformer}input_proj.bias": (hidden,),
        f"{transformer}output_proj.weight": (latent, hidden),
        f"{transformer}output_proj.bias": (latent,),
        **_transformer_shapes(transformer, config),
    }
    for layer in range(config.num_hidden_layers):
        shapes[f"{transformer}layers.{layer}.self_attn_layer_scale.scale"] = (hidden,)
        shapes[f"{transformer}layers.{layer}.mlp_layer_scale.scale"] = (hidden,)
    for index, ratio in enumerate(config.upsampling_ratios):
        shapes |= _transposed_conv_shapes(f"decoder.upsample.{index}.0.", (latent, latent, ratio))
        shapes |= _convnext_shapes(f"decoder.upsample.{index}.1.", latent)
    return shapes | _vocoder_shapes("decoder.decoder.", config)


def _vocoder_shapes(prefix: str, config: CodecConfig) -> Shapes:
    """From the upsampled latent to samples: a list of modules, whose indices are the names."""
    channels = config.decoder_dim
    shapes = _conv_shapes(f"{prefix}0.", (channels, config.latent_dim, 7))
    for index, rate in enumerate(config.upsample_rates, start=1):
        block = f"{prefix}{index}.block."
        shapes |= _snake_shapes(f"{block}0.", channels)
        shapes |= _transposed_conv_shapes(f"{block}1.", (channels, channels // 2, 2 * rate))
        channels //= 2
        for unit in (2, 3, 4):
            shapes |= _snake_shapes(f"{block}{unit}.act1.", channels)
            shapes |= _conv_shapes(f"{block}{unit}.conv1.", (channels, channels, 7))
            shapes |= _snake_shapes(f"{block}{unit}.act2.", channels)
            shapes |= _conv_shapes(f"{block}{unit}.conv2.", (channels, channels, 1))
    last = len(config.upsample_rates) + 1
    return shapes | _snake_shapes(f"{prefix}{last}.", channels) | _conv_shapes(f"{prefix}{last + 1}.", (1, channels, 7))


def _transformer_shapes(prefix: str, config: TransformerConfig) -> Shapes:
    """The layers and the final norm; q/k norms apart, which the codec's transformer has not."""
    hidden, mlp = config.hidden_size, config.intermediate_size
    query, key = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    shapes: Shapes = {f"{prefix}norm.weight": (hidden,)}
    for layer in range(config.num_hidden_layers):
        name = f"{prefix}layers.{layer}."
        shapes |= {
            f"{name}input_layernorm.weight": (hidden,),
            f"{name}self_attn.q_proj.weight": (query, hidden),
            f"{name}self_attn.k_proj.weight": (key, hidden),
            f"{name}self_attn.v_proj.weight": (key, hidden),
            f"{name}self_attn.o_proj.weight": (hidden, query),
            f"{name}post_attention_layernorm.weight": (hidden,),
            f"{name}mlp.gate_proj.weight": (mlp, hidden),
            f"{name}mlp.up_proj.weight": (mlp, hidden),
            f"{name}mlp.down_proj.weight": (hidden, mlp),
        }
    return shapes


def _qk_norm_shapes(prefix: str, config: TransformerConfig) -> Shapes:
    return {
        f"{prefix}layers.{layer}.self_attn.{norm}.weight": (config.head_dim,)
        for layer in range(config.num_hidden_layers)
        for norm in ("q_norm", "k_norm")
    }


def _quantizer_shapes(prefix: str, config: CodecConfig, books: int) -> Shapes:
    """`input_proj` serves encoding alone; the published files hold it on this side too."""
    entry = config.codebook_dim // 2
    shapes: Shapes = {
        f"{prefix}input_proj.weight": (entry, config.codebook_dim, 1),
        f"{prefix}output_proj.weight": (config.codebook_dim, entry, 1),
    }
    for book in range(books):
        shapes[f"{prefix}vq.layers.{book}._codebook.embedding_sum"] = (config.codebook_size, entry)
        shapes[f"{prefix}vq.layers.{book}._codebook.cluster_usage"] = (config.codebook_size,)
    return shapes


def _conv_shapes(prefix: str, weight: tuple[int, int, int]) -> Shapes:
    return {f"{prefix}conv.weight": weight, f"{prefix}conv.bias": weight[:1]}


def _transposed_conv_shapes(prefix: str, weight: tuple[int, int, int]) -> Shapes:
    return {f"{prefix}conv.weight": weight, f"{prefix}conv.bias": weight[1:2]}


def _snake_shapes(prefix: str, channels: int) -> Shapes:
    return {f"{prefix}alpha": (channels,), f"{prefix}beta": (channels,)}


def _convnext_shapes(prefix: str, channels: int) -> Shapes:
    return {
        **_conv_shapes(f"{prefix}dwconv.", (channels, 1, 7)),
        f"{prefix}norm.weight": (channels,),
        f"{prefix}norm.bias": (channels,),
        f"{prefix}pwconv1.weight": (4 * channels, channels),
        f"{prefix}pwconv1.bias": (4 * channels,),
        f"{prefix}pwconv2.weight": (channels, 4 * channels),
        f"{prefix}pwconv2.bias": (channels,),
        f"{prefix}gamma": (channels,),
    }
