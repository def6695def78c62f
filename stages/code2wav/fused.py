"""The codec decoder for a GPU: the frozen modules' weights, folded for `programs`, and what it remembers of streams.

A call is some 80 kernel launches and nothing that waits: it can be captured in a CUDA graph for each number of frames.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
from torch import Tensor, nn

from ..architecture import CodecConfig
from ..errors import CheckpointError
from . import product_programs, programs
from .decoder import CodecDecoder
from .layers import KERNEL, ConvNeXtBlock, FrozenConv, ResidualUnit, VocoderBlock
from .products import MIN_BLOCK, Product, Rows, Snake, Tile, choose_unit_tile, conv_product, early, split_columns
from .quantizer import CodeTable
from .transformer import Transformer, TransformerLayer
from .unit_kernel import ROWS, PackedUnit, UnitKernel, fits

COPY_BLOCK = 2048
"""Elements of a context that one program copies."""
ATTENTION_WARPS = 4
SAMPLES_BLOCK = 64
"""Samples that one program of the last convolution makes."""


@dataclass(frozen=True)
class Batch:
    """The next frames of some streams, any number of each; streams behind the last one have none. All int32."""

    codes: Tensor
    """[frames, books], one stream after the other."""
    owners: Tensor
    """[frames]: which stream of the batch a frame belongs to, ascending from 0."""
    begins: Tensor
    """[frames + 1]: the frame with which a stream begins, and with which the one before it ends."""
    sources: Tensor
    """[frames]: the slot that a stream's state is read from."""
    slots: Tensor
    """[frames]: the slot that it is written to."""
    positions: Tensor
    """[frames]: how many frames a stream has had."""


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
            activation=product_programs.SWIGLU.value,
            norm_eps=eps,
        )
        self.down = Product(down.T, None, dtype)


class FusedTransformer:
    """Rows of latents → the same; keeps the streams' keys and values."""

    def __init__(
        self, module: Transformer, config: CodecConfig, dtype: torch.dtype, slots: int, max_frames: int
    ) -> None:
        self.config = config
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

    def __call__(self, x: Rows, batch: Batch) -> Rows:
        config = self.config
        # The residual stays in float32: it is small, and all layers add to it.
        hidden = x.fresh(config.hidden_size, torch.float32)
        qkv = x.fresh(self.layers[0].qkv.columns)
        attended = x.fresh(config.num_attention_heads * config.head_dim)
        product, out = x.fresh(config.intermediate_size), x.fresh(config.latent_dim)
        self.input(x, raw=hidden)
        for layer, cache in zip(self.layers, self.cache, strict=True):
            layer.qkv(hidden, out=qkv)
            self._attend(qkv.values, cache, batch, attended.values)
            layer.output(attended, raw=hidden, added=hidden)
            layer.gate_up(hidden, out=product)
            layer.down(product, raw=hidden, added=hidden)
        self.output(hidden, out=out)
        return out

    def _attend(self, qkv: Tensor, cache: Tensor, batch: Batch, out: Tensor) -> None:
        config = self.config
        half = config.head_dim // 2
        programs.attend[(len(batch.slots), config.num_attention_heads)](
            qkv,
            cache,
            self.rotation,
            batch.slots,
            batch.positions,
            batch.begins,
            out,
            config.head_dim**-0.5,
            **early(qkv),
            HEADS=config.num_attention_heads,
            KV_HEADS=config.num_key_value_heads,
            HALF=half,
            WINDOW=config.sliding_window,
            RING=self.ring,
            BLOCK_T=max(MIN_BLOCK, triton.next_power_of_2(self.ring - config.sliding_window + 1)),
            BLOCK_H=max(MIN_BLOCK, triton.next_power_of_2(half)),
            BLOCK_W=max(MIN_BLOCK, triton.next_power_of_2(config.sliding_window - 1)),
            num_warps=ATTENTION_WARPS,
        )


class FusedConvNeXt:
    """A ConvNeXtBlock."""

    def __init__(self, block: ConvNeXtBlock, dtype: torch.dtype) -> None:
        conv, self.norm_eps = block.dwconv, block.norm.eps
        assert isinstance(conv, FrozenConv)
        self.context, self.channels = conv.context, len(conv.weight)
        self.weight = conv.weight.squeeze(1).T.float().contiguous()
        self.bias, self.gain, self.shift = conv.bias.float(), block.norm.weight.float(), block.norm.bias.float()
        self.widen = Product(block.pwconv1.weight.T, block.pwconv1.bias, dtype, activation=product_programs.GELU.value)
        scaled = block.pwconv2.weight * block.gamma.unsqueeze(1)
        self.narrow = Product(scaled.T, block.pwconv2.bias * block.gamma, dtype)

    def __call__(self, x: Rows, out: Rows) -> None:
        normed, wide = x.fresh(self.channels), x.fresh(self.widen.columns)
        programs.depthwise_norm[(x.rows,)](
            x.values,
            self.weight,
            self.bias,
            self.gain,
            self.shift,
            normed.values,
            x.owners,
            x.per_frame,
            self.channels,
            x.context_size,
            self.norm_eps,
            **early(x.values),
            TAPS=len(self.weight),
            BLOCK=triton.next_power_of_2(self.channels),
        )
        self.widen(normed, out=wide)
        self.narrow(wide, out=out, added=x)


class FusedUnit:
    """A ResidualUnit whose input comes activated, and whose output leaves through the SnakeBeta after it as well."""

    def __init__(
        self, unit: ResidualUnit, following: nn.Module, dtype: torch.dtype, kernel: UnitKernel | None = None
    ) -> None:
        """`kernel`: what computes it where a frame has whole tiles."""
        self.dilated = conv_product(unit.conv1, dtype, Snake(unit.act2))
        self.pointwise = conv_product(unit.conv2, dtype, Snake(following))
        self.wide, self.narrow = split_columns(self.pointwise.columns)
        self.packed = None if kernel is None else PackedUnit(kernel, self.dilated, self.pointwise)

    def __call__(self, x: Rows, added: Rows, raw: Rows | None, out: Rows) -> None:
        """`added`: x before its activation. `raw` may be `added`."""
        tile = choose_unit_tile(x.channels, x.values.element_size())
        if self.packed is not None and x.per_frame % ROWS == 0:
            self.packed(x, added, raw, out)
        elif tile is None:
            hidden = x.fresh(x.channels)
            self.dilated(x, out=hidden)
            self.pointwise(hidden, raw=raw, out=out, added=added)
        else:
            self._whole(tile, x, added, raw, out)

    def _whole(self, tile: Tile, x: Rows, added: Rows, raw: Rows | None, out: Rows) -> None:
        dilated, pointwise = self.dilated, self.pointwise
        assert dilated.snake is not None
        assert pointwise.snake is not None
        product_programs.residual_unit[(triton.cdiv(x.rows, tile.m),)](
            x.values,
            dilated.weight,
            dilated.bias,
            dilated.snake.frequency,
            dilated.snake.height,
            pointwise.weight,
            pointwise.bias,
            pointwise.snake.frequency,
            pointwise.snake.height,
            added.values,
            None if raw is None else raw.values,
            out.values,
            x.owners,
            x.rows,
            x.per_frame,
            x.channels,
            dilated.dilation * x.channels,
            x.context_size,
            added.context_size,
            out.context_size,
            **early(x.values),
            TAPS=KERNEL,
            EVEN_K=x.channels % tile.k == 0,
            EVEN_N=x.channels == self.wide + self.narrow,
            BLOCK_M=tile.m,
            WIDE=self.wide,
            NARROW=self.narrow,
            BLOCK_K=tile.k,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )


class FusedBlock:
    """A VocoderBlock whose input comes activated, and whose output leaves through the SnakeBeta after it."""

    def __init__(self, block: VocoderBlock, following: nn.Module, dtype: torch.dtype) -> None:
        _, transposed, *units = block.block
        assert isinstance(transposed, FrozenConv)
        self.rate, self.channels = transposed.spread, len(transposed.weight) // transposed.spread
        residual = [unit for unit in units if isinstance(unit, ResidualUnit)]
        activations = [unit.act1 for unit in residual] + [following]
        self.spread = conv_product(transposed, dtype, Snake(activations[0], self.rate))
        device = transposed.weight.device
        kernel = UnitKernel(self.channels, device) if fits(self.channels, dtype, device) else None
        self.units = [
            FusedUnit(unit, after, dtype, kernel) for unit, after in zip(residual, activations[1:], strict=True)
        ]

    def __call__(self, x: Rows, following: list[Rows]) -> None:
        """`following`: the inputs of the units and of what comes after the block."""
        raw = following[0].fresh(self.channels)
        self.spread(x, raw=raw, out=following[0])
        for unit, before, after in zip(self.units, following, following[1:], strict=False):
            unit(before, raw, None if after is following[-1] else raw, after)


class Contexts:
    """The left contexts of all layers: one row a slot, and their way into a step's buffers and back."""

    def __init__(self, sizes: list[tuple[int, int, int]], slots: int, dtype: torch.dtype, device: torch.device) -> None:
        """`sizes`: (context, channels, rows a frame) of each layer's input."""
        self.sizes = sizes
        blocks, begin, before = [], 0, 0
        for context, channels, rows in sizes:
            size, frame = context * channels, rows * channels
            blocks += [(begin, before, frame, size, first) for first in range(0, size, COPY_BLOCK)]
            begin, before = begin + size, before + frame
        self.width, self.frame = begin, before
        self._blocks = torch.tensor(blocks, dtype=torch.int32, device=device)
        self._states = torch.zeros(slots, self.width, dtype=dtype, device=device)

    def rows(self, owners: Tensor) -> tuple[Tensor, list[Rows]]:
        """Memory for a batch in which each frame could be a stream's, and each layer's input in it."""
        frames = len(owners)
        memory = self._states.new_empty(frames * (self.width + self.frame))
        parts = torch.split(memory, [frames * (rows + context) * channels for context, channels, rows in self.sizes])
        return memory, [
            Rows(part.view(-1, channels), owners, rows, context)
            for part, (context, channels, rows) in zip(parts, self.sizes, strict=True)
        ]

    def fill(self, memory: Tensor, batch: Batch) -> None:
        """The streams' contexts into the fronts of their rows."""
        self._move(memory, batch.sources, batch.begins, fill=True)

    def keep(self, memory: Tensor, batch: Batch) -> None:
        """The ends of the streams' rows into their states."""
        self._move(memory, batch.slots, batch.begins, fill=False)

    def _move(self, memory: Tensor, slots: Tensor, begins: Tensor, fill: bool) -> None:
        programs.move_contexts[(len(slots), len(self._blocks))](
            memory,
            self._states,
            slots,
            begins,
            self._blocks,
            len(slots),
            self.width,
            **early(memory),
            FILL=fill,
            BLOCK=COPY_BLOCK,
        )


class FusedDecoder:
    """Decodes chunks of streams that lie in slots. Two more slots: one always silent, one for what nobody hears."""

    def __init__(
        self, decoder: CodecDecoder, config: CodecConfig, dtype: torch.dtype, slots: int, max_frames: int
    ) -> None:
        """`decoder` frozen, float32. A chunk has at most `max_frames` frames. Raises CheckpointError."""
        if config.head_dim % 2:
            raise CheckpointError(f"decoder_config: head_dim {config.head_dim} is odd and cannot be rotated")
        self.max_frames, self.silent_slot, self.idle_slot = max_frames, slots, slots + 1
        table = decoder.quantizer
        assert isinstance(table, CodeTable)
        device = table.table.device
        self.table = table.table.to(dtype)
        self.pre_conv = conv_product(decoder.pre_conv, dtype)
        self.transformer = FusedTransformer(decoder.pre_transformer, config, dtype, slots + 2, max_frames)
        spreads = [stage.get_submodule("0") for stage in decoder.upsample]
        resized = [part for part in decoder.upsample.modules() if isinstance(part, ConvNeXtBlock)]
        self.upsample = [
            (conv_product(spread, dtype), FusedConvNeXt(block, dtype))
            for spread, block in zip(spreads, resized, strict=True)
        ]
        blocks = [part for part in decoder.decoder if isinstance(part, VocoderBlock)]
        activations = [*(block.block[0] for block in blocks), decoder.decoder[-2]]
        last = decoder.decoder[-1]
        assert isinstance(last, FrozenConv)
        self.first = conv_product(decoder.decoder[0], dtype, Snake(activations[0]))
        self.blocks = [FusedBlock(block, after, dtype) for block, after in zip(blocks, activations[1:], strict=True)]
        self.last = conv_product(last, torch.float32)
        self.contexts = Contexts(list(self._sizes()), slots + 2, dtype, device)

    def _sizes(self) -> Iterator[tuple[int, int, int]]:
        """(context, channels, rows a frame) of every input that has a context, in the order of the layers."""
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

    def __call__(self, batch: Batch, samples: Tensor) -> None:
        """`samples` [frames · 1920]: int16, or float32 for tests."""
        memory, inputs = self.contexts.rows(batch.owners)
        self.contexts.fill(memory, batch)
        coded, *resized, first = inputs[: 2 + len(self.upsample)]
        self._sum_codes(batch, coded)
        hidden = coded.fresh(self.pre_conv.columns)
        self.pre_conv(coded, out=hidden)
        hidden = self.transformer(hidden, batch)
        for (spread, block), rows, after in zip(self.upsample, resized, [*resized[1:], None], strict=True):
            spread(hidden, out=rows)
            hidden = first if after is None else rows.fresh(rows.channels)
            block(rows, hidden)
        at = 2 + len(self.upsample)
        self.first(first, out=inputs[at])
        for vocoder in self.blocks:
            end = at + 1 + len(vocoder.units)
            vocoder(inputs[at], inputs[at + 1 : end + 1])
            at = end
        self._to_samples(inputs[at], samples)
        self.contexts.keep(memory, batch)

    def _sum_codes(self, batch: Batch, out: Rows) -> None:
        frames, books = batch.codes.shape
        assert batch.codes.is_contiguous()
        width = out.channels
        block = min(512, triton.next_power_of_2(width))
        programs.sum_codes[(frames, triton.cdiv(width, block))](
            batch.codes,
            self.table,
            out.values,
            out.owners,
            width,
            len(self.table) // books,
            out.context_size,
            **early(out.values),
            BOOKS=books,
            BLOCK=block,
        )

    def _to_samples(self, x: Rows, samples: Tensor) -> None:
        programs.to_samples[(triton.cdiv(x.rows, SAMPLES_BLOCK),)](
            x.values,
            self.last.weight,
            self.last.bias,
            samples,
            x.owners,
            x.rows,
            x.per_frame,
            x.context_size,
            x.channels,
            len(self.last.weight),
            **early(x.values),
            BLOCK_M=SAMPLES_BLOCK,
            BLOCK_K=min(128, triton.next_power_of_2(x.channels)),
        )
