"""The sizes of both encoders, under their published names. What the files leave out has the published models' value."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SpeakerEncoderConfig:
    """`speaker_encoder_config` of a `base` checkpoint: ECAPA-TDNN. The lists hold a value for each of its layers."""

    enc_dim: int
    """Of the x-vector: the Talker's hidden size."""
    mel_dim: int = 128
    enc_channels: tuple[int, ...] = (512, 512, 512, 512, 1536)
    enc_kernel_sizes: tuple[int, ...] = (5, 3, 3, 3, 1)
    enc_dilations: tuple[int, ...] = (1, 2, 3, 4, 1)
    enc_attention_channels: int = 128
    enc_res2net_scale: int = 8
    enc_se_channels: int = 128


@dataclass(frozen=True)
class CodecEncoderConfig:
    """`encoder_config` of the speech tokenizer: Mimi's encoder.

    `upsampling_ratios` are the decoder's: the encoder goes through them from the last to the first, then halves.
    """

    num_filters: int = 64
    kernel_size: int = 7
    last_kernel_size: int = 3
    residual_kernel_size: int = 3
    num_residual_layers: int = 1
    dilation_growth_rate: int = 2
    compress: int = 2
    upsampling_ratios: tuple[int, ...] = (8, 6, 5, 4)
    hidden_size: int = 512
    intermediate_size: int = 2048
    num_hidden_layers: int = 8
    num_attention_heads: int = 8
    head_dim: int = 64
    norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    sliding_window: int = 250
    codebook_size: int = 2048
    codebook_dim: int = 256
    vector_quantization_hidden_dimension: int = 256
