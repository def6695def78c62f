"""The codec decoder for a GPU: the frozen modules' weights, folded for `programs`, and what it remembers of streams.

A call is some 80 kernel launches and nothing that waits: it can be captured in a CUDA graph for each (streams, frames).
"""

from collections.abc import Iterator

import torch
import triton
from torch import Tensor, nn

from ..architecture import CodecConfig
from ..errors import ConfigurationError
from . import attention, programs
from .decoder import CodecDecoder
from .layers import KERNEL, CausalConv, ConvNeXtBlock, FrozenTransposedConv, ResidualUnit, VocoderBlock
from .products import Buffer, Product, Snake, choose_unit_tile, conv_product, split_columns
from .quantizer import CodeTable
from .transformer import Transformer, TransformerLayer

COPY_BLOCK = 2048
"""Elements of a context that one program copies."""
WIDEST_UNIT = 192
"""Channels of a residual unit that one program computes whole."""
SAMPLES_BLOCK = 64
"""Samples that one program of the last convolution makes."""


class FusedLayer:
    """A transformer layer: its norms folded into the products behind them, its LayerScales into those before."""

    def __init__(self, layer: TransformerLayer, eps: float, dtype: torch.dtype) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        qkv = torch.cat((attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight))
        gate_up = torch.stack((mlp.gate_proj.weight, mlp.up_proj.weight), 1).flatten(0, 1)
        output = attention.o_proj.weight * layer.self_attn_layer_scale.scale.unsqueeze(1)
        down = mlp.down_proj.weight * layer.mlp_layer_scale.scale.unsqueeze(1)
        self.qkv = Product((qkv * layer.input_layernorm.weight).T, None, dtype, norm_eps=eps)
        self.output = Product(output.T, None, dtype)
        self.gate_up = Product(
            (gate_up * layer.post_attention_layernorm.weight).T,
            None,
            dtype,
            activation=programs.SWIGLU.value,
            norm_eps=eps,
        )
        self.down = Product(down.T, None, dtype)


class FusedTransformer:
    """[streams, T, latent] → the same; keeps the streams' keys and values."""

    def __init__(
        self, module: Transformer, config: CodecConfig, dtype: torch.dtype, slots: int, max_frames: int
    ) -> None:
        self.config, self.dtype = config, dtype
        self.ring = config.sliding_window - 1 + max_frames
        device = module.norm.weight.device
        eps = config.rms_norm_eps
        self.input = Product(module.input_proj.weight.T, module.input_proj.bias, dtype)
        self.layers = [FusedLayer(layer, eps, dtype) for layer in module.layers if isinstance(layer, TransformerLayer)]
        output = module.output_proj
        self.output = Product((output.weight * module.norm.weight).T, output.bias, dtype, norm_eps=eps)
        exponents = torch.arange(0, config.head_dim, 2, device=device, dtype=torch.float32) / config.head_dim
        self.rotation = config.rope_theta**-exponents
        shape = (len(self.layers), slots, 2, config.num_key_value_heads, self.ring, config.head_dim)
        self.cache = torch.zeros(shape, dtype=dtype, device=device)

    def __call__(self, x: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
        streams, frames, _ = x.shape
        config = self.config
        # The residual stays in float32: it is small, and all layers add to it.
        hidden = x.new_empty(streams, frames, config.hidden_size, dtype=torch.float32)
        qkv = x.new_empty(streams, frames, self.layers[0].qkv.columns)
        attended = x.new_empty(streams, frames, config.num_attention_heads * config.head_dim)
        product = x.new_empty(streams, frames, config.intermediate_size)
        out = x.new_empty(streams, frames, config.latent_dim)
        self.input(x, frames, raw=hidden)
        for layer, cache in zip(self.layers, self.cache, strict=True):
            layer.qkv(hidden, frames, out=qkv)
            self._attend(qkv, cache, slots, positions, attended)
            layer.output(attended, frames, raw=hidden, added=hidden)
            layer.gate_up(hidden, frames, out=product)
            layer.down(product, frames, raw=hidden, added=hidden)
        self.output(hidden, frames, out=out)
        return out

    def _attend(self, qkv: Tensor, cache: Tensor, slots: Tensor, positions: Tensor, out: Tensor) -> None:
        config, frames = self.config, qkv.shape[1]
        half = config.head_dim // 2
        attention.attend[(len(qkv), config.num_attention_heads)](
            qkv,
            cache,
            self.rotation,
            slots,
            positions,
            out,
            frames,
            config.head_dim**-0.5,
            HEADS=config.num_attention_heads,
            KV_HEADS=config.num_key_value_heads,
            HALF=half,
            WINDOW=config.sliding_window,
            RING=self.ring,
            BLOCK_T=max(16, triton.next_power_of_2(frames)),
            BLOCK_H=max(16, triton.next_power_of_2(half)),
            BLOCK_W=max(16, triton.next_power_of_2(config.sliding_window - 1)),
        )


class FusedConvNeXt:
    """A ConvNeXtBlock."""

    def __init__(self, block: ConvNeXtBlock, dtype: torch.dtype) -> None:
        conv, self.norm_eps = block.dwconv.conv, block.norm.eps
        assert conv.bias is not None
        self.context, self.channels = block.dwconv.context, conv.in_channels
        self.weight = conv.weight.squeeze(1).T.float().contiguous()
        self.bias, self.gain, self.shift = conv.bias.float(), block.norm.weight.float(), block.norm.bias.float()
        self.widen = Product(block.pwconv1.weight.T, block.pwconv1.bias, dtype, activation=programs.GELU.value)
        scaled = block.pwconv2.weight * block.gamma.unsqueeze(1)
        self.narrow = Product(scaled.T, block.pwconv2.bias * block.gamma, dtype)

    def __call__(self, x: Buffer, out: Tensor) -> None:
        streams, length, channels = x.new.shape
        normed = x.joined.new_empty(streams, length, channels)
        wide = x.joined.new_empty(streams, length, self.widen.columns)
        programs.depthwise_norm[(streams * length,)](
            x.joined,
            self.weight,
            self.bias,
            self.gain,
            self.shift,
            normed,
            length,
            channels,
            x.joined.stride(0),
            self.norm_eps,
            TAPS=len(self.weight),
            BLOCK=triton.next_power_of_2(channels),
        )
        self.widen(normed, length, out=wide)
        self.narrow(wide, length, out=out, added=x.new)


class FusedUnit:
    """A ResidualUnit whose input comes activated, and whose output leaves through the SnakeBeta after it as well."""

    def __init__(self, unit: ResidualUnit, following: nn.Module, dtype: torch.dtype) -> None:
        self.dilated = conv_product(unit.conv1, dtype, Snake(unit.act2))
        self.pointwise = conv_product(unit.conv2, dtype, Snake(following))
        self.wide, self.narrow = split_columns(self.pointwise.columns)

    def __call__(self, x: Buffer, added: Tensor, raw: Tensor | None, out: Tensor) -> None:
        if self.pointwise.columns > WIDEST_UNIT:
            hidden = torch.empty_like(added)
            self.dilated(x.joined, x.new.shape[1], out=hidden)
            self.pointwise(hidden, x.new.shape[1], raw=raw, out=out, added=added)
        else:
            self._whole(x, added, raw, out)

    def _whole(self, x: Buffer, added: Tensor, raw: Tensor | None, out: Tensor) -> None:
        streams, length, channels = x.new.shape
        dilated, pointwise = self.dilated, self.pointwise
        assert dilated.snake is not None
        assert pointwise.snake is not None
        tile = choose_unit_tile(channels, out.element_size())
        programs.residual_unit[(triton.cdiv(streams * length, tile.m),)](
            x.joined,
            dilated.weight,
            dilated.bias,
            dilated.snake.frequency,
            dilated.snake.height,
            pointwise.weight,
            pointwise.bias,
            pointwise.snake.frequency,
            pointwise.snake.height,
            added,
            raw,
            out,
            streams * length,
            length,
            channels,
            dilated.dilation * channels,
            x.joined.stride(0),
            added.stride(0),
            out.stride(0),
            TAPS=KERNEL,
            REUSE=tile.reuse,
            EVEN=channels % tile.k == 0 and channels == self.wide + self.narrow,
            BLOCK_M=tile.m,
            WIDE=self.wide,
            NARROW=self.narrow,
            BLOCK_K=tile.k,
            num_warps=tile.warps,
            num_stages=tile.stages,
            maxnreg=tile.registers,
        )


class FusedBlock:
    """A VocoderBlock whose input comes activated, and whose output leaves through the SnakeBeta after it."""

    def __init__(self, block: VocoderBlock, following: nn.Module, dtype: torch.dtype) -> None:
        _, transposed, *units = block.block
        assert isinstance(transposed, FrozenTransposedConv)
        self.rate, self.channels = transposed.stride, transposed.out_channels
        residual = [unit for unit in units if isinstance(unit, ResidualUnit)]
        activations = [unit.act1 for unit in residual] + [following]
        self.spread = conv_product(transposed, dtype, Snake(activations[0], self.rate))
        self.units = [FusedUnit(unit, after, dtype) for unit, after in zip(residual, activations[1:], strict=True)]

    def __call__(self, x: Buffer, following: list[Buffer]) -> None:
        """`following`: the buffers of the units and of what comes after the block."""
        streams, length, _ = x.new.shape
        raw = x.joined.new_empty(streams, length * self.rate, self.channels)
        # The samples that come of one row are its columns here, and rows from here on.
        self.spread(x.joined, length, raw=raw, out=following[0].new)
        for unit, before, after in zip(self.units, following, following[1:], strict=False):
            unit(before, raw, None if after is following[-1] else raw, after.new)


class Contexts:
    """The left contexts of all layers: one row a slot, and their way into a step's buffers and back."""

    def __init__(self, sizes: list[tuple[int, int, int]], slots: int, dtype: torch.dtype, device: torch.device) -> None:
        """`sizes`: (context, channels, rows a frame) of each buffer."""
        self.sizes = sizes
        blocks, begin, before = [], 0, 0
        for context, channels, rows in sizes:
            size, frame = context * channels, rows * channels
            blocks += [(begin, before, frame, size, first) for first in range(0, size, COPY_BLOCK)]
            begin, before = begin + size, before + frame
        self.width, self.frame = begin, before
        self._blocks = torch.tensor(blocks, dtype=torch.int32, device=device)
        self._states = torch.zeros(slots, self.width, dtype=dtype, device=device)

    def buffers(self, streams: int, frames: int) -> tuple[Tensor, list[Buffer]]:
        """Memory for a step, and each layer's part of it."""
        memory = self._states.new_empty(streams * (self.width + frames * self.frame))
        lengths = [streams * (rows * frames + context) * width for context, width, rows in self.sizes]
        return memory, [
            Buffer(part.view(streams, -1, channels), context)
            for part, (context, channels, _) in zip(torch.split(memory, lengths), self.sizes, strict=True)
        ]

    def move(self, memory: Tensor, slots: Tensor, frames: int, fill: bool) -> None:
        """From the states of `slots` into the buffers, or the buffers' last rows into the states."""
        programs.move_contexts[(len(slots), len(self._blocks))](
            memory, self._states, slots, self._blocks, len(slots), frames, self.width, FILL=fill, BLOCK=COPY_BLOCK
        )


class FusedDecoder:
    """Decodes chunks of streams that lie in slots. Two more slots: one always silent, one for what nobody hears."""

    def __init__(
        self, decoder: CodecDecoder, config: CodecConfig, dtype: torch.dtype, slots: int, max_frames: int
    ) -> None:
        """`decoder` frozen, float32. A chunk has at most `max_frames` frames. Raises ConfigurationError."""
        if config.head_dim % 2:
            raise ConfigurationError(f"code2wav: head_dim {config.head_dim} is odd")
        self.silent_slot, self.idle_slot = slots, slots + 1
        table, device = decoder.quantizer, decoder.pre_conv.conv.weight.device
        assert isinstance(table, CodeTable)
        self.table = table.table.to(dtype)
        self.pre_conv = conv_product(decoder.pre_conv, dtype)
        self.transformer = FusedTransformer(decoder.pre_transformer, config, dtype, slots + 2, max_frames)
        spreads = [part for part in decoder.upsample.modules() if isinstance(part, FrozenTransposedConv)]
        resized = [part for part in decoder.upsample.modules() if isinstance(part, ConvNeXtBlock)]
        self.upsample = [
            (conv_product(spread, dtype), FusedConvNeXt(block, dtype))
            for spread, block in zip(spreads, resized, strict=True)
        ]
        blocks = [part for part in decoder.decoder if isinstance(part, VocoderBlock)]
        activations = [*(block.block[0] for block in blocks), decoder.decoder[-2]]
        last = decoder.decoder[-1]
        assert isinstance(last, CausalConv)
        self.first = conv_product(decoder.decoder[0], dtype, Snake(activations[0]))
        self.blocks = [FusedBlock(block, after, dtype) for block, after in zip(blocks, activations[1:], strict=True)]
        self.last = conv_product(last, torch.float32)
        self.contexts = Contexts(list(self._sizes()), slots + 2, dtype, device)

    def _sizes(self) -> Iterator[tuple[int, int, int]]:
        """(context, channels, rows a frame) of every buffer, in the order of the layers."""
        rows = 1
        yield self.pre_conv.context, self.pre_conv.channels, rows
        for spread, block in self.upsample:
            rows *= spread.columns // block.channels
            yield block.context, block.channels, rows
        yield self.first.context, self.first.channels, rows
        for vocoder in self.blocks:
            yield vocoder.spread.context, vocoder.spread.channels, rows
            rows *= vocoder.rate
            for unit in vocoder.units:
                yield unit.dilated.context, unit.dilated.channels, rows
        yield self.last.context, self.last.channels, rows

    def __call__(self, codes: Tensor, sources: Tensor, slots: Tensor, positions: Tensor, samples: Tensor) -> None:
        """The next frames of some streams: codes int [streams, T, books] → `samples` [streams, T · 1920].

        All int32 but samples, which are int16, or float32 for tests. `sources` are the slots that the states are read
        from, `slots` those they are written to, `positions` the frames that each stream has had.
        """
        streams, frames, _ = codes.shape
        memory, buffers = self.contexts.buffers(streams, frames)
        self.contexts.move(memory, sources, frames, fill=True)
        coded, *resized, first = buffers[: 2 + len(self.upsample)]
        self._sum_codes(codes, coded)
        hidden = self.table.new_empty(streams, frames, self.pre_conv.columns)
        self.pre_conv(coded.joined, frames, raw=hidden)
        hidden = self.transformer(hidden, slots, positions)
        for (spread, block), buffer in zip(self.upsample, resized, strict=True):
            spread(hidden, hidden.shape[1], out=buffer.new)
            hidden = first.new if buffer is resized[-1] else torch.empty_like(buffer.new)
            block(buffer, hidden)
        vocoder = buffers[2 + len(self.upsample) :]
        self.first(first.joined, first.new.shape[1], out=vocoder[0].new)
        for index, run in enumerate(self.blocks):
            step = 1 + len(run.units)
            run(vocoder[index * step], vocoder[index * step + 1 : index * step + step + 1])
        self._to_samples(vocoder[-1], samples)
        self.contexts.move(memory, slots, frames, fill=False)

    def _sum_codes(self, codes: Tensor, out: Buffer) -> None:
        assert codes.is_contiguous()
        streams, frames, books = codes.shape
        entries, width = len(self.table) // books, self.table.shape[1]
        block = min(512, triton.next_power_of_2(width))
        programs.sum_codes[(streams * frames, triton.cdiv(width, block))](
            codes, self.table, out.new, frames, width, entries, out.joined.stride(0), BOOKS=books, BLOCK=block
        )

    def _to_samples(self, x: Buffer, samples: Tensor) -> None:
        streams, length, channels = x.new.shape
        rows = streams * length
        programs.to_samples[(triton.cdiv(rows, SAMPLES_BLOCK),)](
            x.joined,
            self.last.weight,
            self.last.bias,
            samples,
            rows,
            length,
            x.joined.stride(0),
            channels,
            len(self.last.weight),
            BLOCK_M=SAMPLES_BLOCK,
            BLOCK_K=min(128, triton.next_power_of_2(channels)),
        )
