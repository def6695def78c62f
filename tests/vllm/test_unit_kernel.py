"""Residual units in one launch on Hopper: weights stand where tensor cores read them, and units are the modules'."""

import pytest
import torch

from duotone.stages.code2wav.fused import FusedUnit
from duotone.stages.code2wav.layers import ResidualUnit, SnakeBeta, freeze
from duotone.stages.code2wav.products import Rows
from duotone.stages.code2wav.unit_kernel import SHAPES, UnitKernel, compiled, fits, packed

pytestmark = pytest.mark.filterwarnings("default")
PART = 96
PER_FRAME = {96: 1920, 192: 640}
"""Published: rows of a frame where there are so many channels."""
hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or not fits(96, torch.bfloat16, torch.device("cuda")), reason="the kernel is Hopper's"
)


@pytest.mark.parametrize("channels", SHAPES)
def test_the_kernel_compiles_without_a_gpu(channels):
    assert b"residual_unit" in compiled(channels, SHAPES[channels])


@pytest.mark.parametrize("channels", SHAPES)
def test_packed_weights_stand_where_the_tensor_cores_read_them(channels):
    torch.manual_seed(0)
    dilated = torch.randn(7 * channels, channels, dtype=torch.float64)
    pointwise = torch.randn(channels, channels, dtype=torch.float64)
    x = torch.randn(7 * channels, dtype=torch.float64)
    parts = channels // PART
    sheets = packed(dilated, pointwise).view(-1, PART * 64)
    steps = [instruction_right(sheet, step) for sheet in sheets for step in range(4)]
    hidden = torch.zeros(parts, PART, dtype=torch.float64)
    for step in range(7 * channels // 16):
        for part in range(parts):
            hidden[part] += steps[(step // 4 * parts + part) * 4 + step % 4] @ x[16 * step : 16 * step + 16]
    torch.testing.assert_close(in_order(hidden), x @ dilated)
    mixed = torch.zeros(parts, PART, dtype=torch.float64)
    for part in range(parts):
        for step, inputs in enumerate(hidden.view(-1, 16)):
            mixed[part] += steps[(7 * parts + part) * channels // 16 + step] @ inputs
    torch.testing.assert_close(in_order(mixed), x @ dilated @ pointwise)


def instruction_right(sheet, step):
    """[96, 16] of an instruction: rows of 128 bytes, bits 4 to 6 of an address exchanged by its bits 7 to 9."""
    column, k = torch.meshgrid(torch.arange(PART), torch.arange(16), indexing="ij")
    byte = column * 128 + step * 32 + 2 * k
    return sheet[(byte ^ (byte >> 7 & 7) << 4) // 2]


def in_order(made):
    """What threads hold, thread t of four columns 8j + 2t and 8j + 2t + 1, as channels: eight of a thread's in turn."""
    return made.view(-1, 3, 4, 4, 2).transpose(2, 3).flatten()


@hopper
@torch.inference_mode()
@pytest.mark.parametrize("channels", SHAPES)
@pytest.mark.parametrize("dilation", [1, 3, 9])
@pytest.mark.parametrize("lengths", [[1], [3, 1, 2], [1] * 7, [8] * 8])
def test_streams_of_any_length_get_the_modules_rows_and_keep_their_contexts(channels, dilation, lengths):
    torch.manual_seed(channels + dilation)
    parts = torch.nn.ModuleList([ResidualUnit(channels, dilation), SnakeBeta(channels)])
    for parameter in parts.parameters():
        torch.nn.init.normal_(parameter, std=0.5 / parameter[0].numel() ** 0.5 if parameter.dim() > 1 else 0.3)
    freeze(parts.requires_grad_(False).to("cuda"))
    unit, after = parts
    per_frame, context, out_context = PER_FRAME[channels], 6 * dilation, 18
    rows = [length * per_frame for length in lengths]
    inputs = [torch.randn(context + count, channels, device="cuda").bfloat16() for count in rows]
    before = [torch.randn(count, channels, device="cuda").bfloat16() for count in rows]
    owners = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)).to("cuda", torch.int32)
    raw = Rows(torch.cat(before), owners, per_frame)
    out = Rows(raw.values.new_full((sum(rows) + len(rows) * out_context, channels), 77), owners, per_frame, out_context)
    fused = FusedUnit(unit, after, torch.bfloat16, UnitKernel(channels, torch.device("cuda")))
    fused(Rows(torch.cat(inputs), owners, per_frame, context), raw, raw, out)
    made = out.values.split([out_context + count for count in rows])
    for x, added, stored, heard in zip(inputs, before, raw.values.split(rows), made, strict=True):
        hidden = unit.conv1(x[context:].float().T[None], {unit.conv1: x[None, :context].float()})
        expected = added.float().T[None] + unit.conv2(unit.act2(hidden))
        assert_close(stored, expected)
        assert_close(heard[out_context:], after(expected))
        assert (heard[:out_context] == 77).all()


def assert_close(rows, expected):
    noise = rows.float() - expected[0].T
    assert expected.square().mean() > 1e4 * noise.square().mean()
