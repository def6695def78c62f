"""The codec decoder: 16 codes a frame → 1,920 samples at 24 kHz.

Its parameters are the published `decoder.*` tensors: a checkpoint loads strictly, and what is trained here can be
published as it is.
"""

import torch
from torch import Tensor, nn

from ..architecture import CodecConfig
from ..weights import WeightIndex
from .layers import KERNEL, CausalConv, CausalTransposedConv, ConvNeXtBlock, SnakeBeta, State, VocoderBlock, freeze
from .quantizer import SplitQuantizer
from .transformer import Transformer

PREFIX = "decoder."


class CodecDecoder(nn.Module):
    """Holds weights alone; what it remembers of a stream is in the State that a call is given."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        latent = config.latent_dim
        self.quantizer = SplitQuantizer(config)
        self.pre_conv = CausalConv(config.codebook_dim, latent, 3)
        self.pre_transformer = Transformer(config)
        self.upsample = nn.ModuleList(
            nn.ModuleList([CausalTransposedConv(latent, latent, ratio, ratio), ConvNeXtBlock(latent)])
            for ratio in config.upsampling_ratios
        )
        widths = [config.decoder_dim // 2**index for index in range(len(config.upsample_rates) + 1)]
        self.decoder = nn.ModuleList(
            [
                CausalConv(latent, widths[0], KERNEL),
                *(VocoderBlock(width, rate) for width, rate in zip(widths, config.upsample_rates, strict=False)),
                SnakeBeta(widths[-1]),
                CausalConv(widths[-1], 1, KERNEL),
            ]
        )

    def forward(self, codes: Tensor, state: State | None = None) -> Tensor:
        """int64 [streams, frames, 16] → [streams, frames · 1920] in -1 … 1.

        `state` None: whole sequences that begin in silence. Else the streams go on from it, and it moves on in place:
        the samples are those of the whole sequence, to rounding, however it is cut.
        """
        hidden = self.pre_conv(self.quantizer(codes), state)
        hidden = self.pre_transformer(hidden.transpose(1, 2), state).transpose(1, 2)
        for stage in self.upsample:
            for layer in stage.children():
                hidden = layer(hidden, state)
        *stateful, activation, last = self.decoder
        for layer in stateful:
            hidden = layer(hidden, state)
        return last(activation(hidden), state).squeeze(1).clamp(-1, 1)


def load_decoder(config: CodecConfig, weights: WeightIndex, dtype: torch.dtype, device: str) -> CodecDecoder:
    """The decoder of a checkpoint, frozen: ready to decode, no longer to train. Raises CheckpointError."""
    with torch.device("meta"):
        decoder = CodecDecoder(config)
    freeze(weights.fill(decoder, PREFIX, dtype, device))
    return decoder
