"""What cloning can be told, and the sizes of its encoders under their published names.

What the files leave out of the sizes has the published models' value.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from ..pipeline import Options


class CloningOptions(Options):
    """How recordings of voices are taken in; only `base` checkpoints clone."""

    max_audio_bytes: int = Field(10 << 20, ge=1024, description="larger recordings are refused")
    max_audio_s: float = Field(30.0, ge=1, le=300, description="longer recordings are refused")
    timeout_s: float = Field(60.0, gt=0, description="a recording that takes longer to encode is given up")
    threads: int = Field(4, ge=1, description="CPU threads of the process that decodes and encodes recordings")
    max_waiting: int = Field(16, ge=1, description="recordings that may wait to be encoded; one more is refused")
    remembered: int = Field(64, ge=0, description="recordings that need not be encoded again when they are sent again")
    max_voices: int = Field(256, ge=0, description="voices that may be uploaded")
    voices_dir: Path | None = Field(None, description="where uploaded voices outlive the server; else they do not")
    allowed_hosts: tuple[str, ...] = Field((), description="hosts that `ref_audio` may be fetched from")


class CloningSpec(Options):
    """All that the cloning process is told at its start, as JSON on its command line."""

    checkpoint: Path
    options: CloningOptions


@dataclass(frozen=True)
class SpeakerEncoderConfig:
    """`speaker_encoder_config` of a `base` checkpoint: ECAPA-TDNN. The tuples hold a value for each of its layers."""

    enc_dim: int = 1024
    """Of the x-vector: the Talker's hidden size."""
    sample_rate: Literal[24000] = 24000
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

    sampling_rate: Literal[24000] = 24000
    audio_channels: Literal[1] = 1
    pad_mode: Literal["constant"] = "constant"
    hidden_act: Literal["gelu"] = "gelu"
    num_semantic_quantizers: Literal[1] = 1
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
