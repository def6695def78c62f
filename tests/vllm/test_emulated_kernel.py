"""The frame kernel on a CPU, its threads in bad orders: what it computes, and that it ends."""

import platform
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from duotone.stages import cuda_kernel
from duotone.stages.talker import frame_kernel
from duotone.stages.talker.frame_kernel import FrameKernel
from duotone.stages.talker.frames import FrameMaker, NewFrames, PlainPredictor, Rows, draw_codes
from duotone.stages.types import CODEBOOKS, Sampling

from ..stages.talker.small_predictor import error, fitting_weights, wide
from .emulator import HERE, Emulator

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator is compiled with g++"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="its threads change stacks as x86-64 does"),
]
REQUESTS = [
    Sampling(seed=1, temperature=0.0, min_new_frames=0),
    Sampling(seed=2, repetition_penalty=1.5),
    Sampling(seed=3, subtalker_temperature=1.3, subtalker_top_k=0, subtalker_top_p=0.8),
    Sampling(seed=4, top_k=5, top_p=0.7, subtalker_top_k=20),
]
SIZES = {"HIDDEN": 1024, "HEADS": 16, "KV_HEADS": 8, "INNER": 3072, "ENTRIES": 2048, "LAYERS": 2}
SIZES |= {"FIRST_ENTRIES": 2049, "FIRST_STRIDE": 2056}
SOURCE = Path(frame_kernel.__file__).with_name("predictor") / "frame.cu"


class Emulated:
    """A predictor's passes in the emulator, and the reference."""

    def __init__(self, emulator: Emulator, layers: int) -> None:
        self.emulator, self.weights = emulator, fitting_weights(layers)
        self.exact, self.kernel = PlainPredictor(wide(self.weights)), FrameKernel(self.weights)

    def inputs(self, rows: int, book: int) -> tuple[Tensor, Tensor]:
        """Of a pass: what goes in, and a cache in which something stands everywhere."""
        generator = torch.Generator().manual_seed(100 * rows + book)
        count = 2 if book == 1 else 1
        inputs = torch.randn(rows, count, self.weights.heads.shape[2], generator=generator).bfloat16()
        cache = self.weights.new_cache(rows)
        return inputs, cache.copy_(torch.randn(cache.shape, generator=generator) * 0.7)


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    emulator = Emulator(tmp_path_factory.mktemp("kernels"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_kernel, "compiled", emulator.compiled)
        patch.setattr(cuda_kernel, "Kernel", emulator.kernel)
        patch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
        made = {layers: Emulated(emulator, layers) for layers in (2, 5)}
        yield made


@pytest.mark.parametrize(
    ("layers", "rows", "book", "seed"),
    # The third, behind the others, finds out if nobody waits for cleared places.
    [(2, 40, 1, 2), (2, 20, 2, 3), (2, 3, 1, 14), (5, 3, 2, 4)],
)
def test_logits_and_cache_are_those_of_the_reference_in_any_order(emulated, layers, rows, book, seed):
    one = emulated[layers]
    one.emulator.seed = seed
    inputs, cache = one.inputs(rows, book)
    expected_cache = cache.double()
    expected = one.exact.logits(inputs.double(), expected_cache, book)
    for value, right in zip(one.kernel.logits(inputs, cache, book), expected, strict=True):
        assert error(value, right.double()) < 2e-2
    assert error(cache, expected_cache) < 2e-2


def test_launches_of_other_numbers_of_rows_change_no_bit(emulated):
    one = emulated[2]
    one.emulator.seed = 10
    first: dict[int, Tensor] = {}
    for rows in (3, 20, 3):
        inputs, cache = one.inputs(rows, 1)
        logits = one.kernel.logits(inputs, cache, 1)
        together = torch.cat((logits.flatten(), cache.float().flatten()))
        assert torch.equal(first.setdefault(rows, together), together)


def test_a_launch_makes_the_frames_that_launches_of_one_pass_would(emulated):
    one = emulated[2]
    one.emulator.seed = 20
    weights = one.weights
    maker = FrameMaker(PlainPredictor(weights), 4)
    for slot, sampling in enumerate(REQUESTS):
        maker.enter(slot, sampling, [5, 900] if slot == 1 else [])
    each = np.arange(len(REQUESTS))
    rows = Rows.of(maker._words(len(REQUESTS) + 1, NewFrames(each, each, 2 * (each % 2), each)))
    generator = torch.Generator().manual_seed(9)
    start = torch.randn(len(rows.words), weights.heads.shape[2], generator=generator).bfloat16()
    first_logits = 4 * torch.randn(len(start), len(weights.head), generator=generator).bfloat16()
    first_logits[1, [5, 900]] += 9
    seen, expected_seen = maker._seen.clone(), maker._seen
    codes, expected = (torch.full((len(start), CODEBOOKS), -1) for _ in range(2))
    books = range(1, 4)
    one.kernel._launch(start, 2, weights.new_cache(len(start)), books, rows.words, codes, (first_logits, seen))
    expected[:, 0] = one.exact._draw_first(first_logits, rows, expected_seen)
    inputs = torch.cat((start[:, None], PlainPredictor(weights).embed(expected, 0)), 1)
    cache = weights.new_cache(len(start))
    for book in books:
        logits = one.kernel.logits(inputs, cache, book)
        expected[:, book] = draw_codes(logits, rows.noise[:, book], rows.cut[:, 0], rows.top_k, rows.cut[:, 1])
        inputs = PlainPredictor(weights).embed(expected, book)
    assert torch.equal(codes, expected)
    assert torch.equal(seen, expected_seen)


@pytest.mark.parametrize("entries", [2048, 2049])
def test_draws_are_those_of_the_reference_for_every_kind_of_request(tmp_path, entries):
    emulator, rows, generator = Emulator(tmp_path), 300, torch.Generator().manual_seed(entries)
    for source in (HERE / "draws.cu", *SOURCE.parent.glob("*.cuh")):
        shutil.copy(source, tmp_path)
    library = emulator.compiled(tmp_path / "draws.cu", SIZES | {"FIRST_ENTRIES": entries})
    logits = torch.randn(rows, entries, generator=generator) * torch.tensor([1.0, 3.0, 10.0])[:, None].repeat(100, 1)
    logits[::7, 10:20] = logits[::7, :1]  # equal logits
    logits[::11] = logits[::11].round()
    logits[::13, 5:] = -torch.inf
    temperature = torch.where(torch.rand(rows, generator=generator) < 0.1, 0.0, 0.3 + torch.rand(rows))
    top_k = torch.tensor([0, 1, 5, 50, 50, 300, 5000]).repeat(rows)[:rows]
    top_p = torch.where(torch.rand(rows, generator=generator) < 0.5, 1.0, torch.rand(rows, generator=generator))
    uniform = torch.rand(rows, generator=generator)
    cuts = torch.stack((temperature, top_p, top_k.float(), uniform), 1)
    codes = torch.full((rows,), -1, dtype=torch.int32)
    pointers = [tensor.data_ptr() for tensor in (logits, cuts, codes)]
    emulator.kernel(library, "predictor_frames", 256).launch(1, 0, pointers, (rows, entries))
    expected = draw_codes(logits, uniform, temperature, top_k, top_p)
    assert (codes != expected).sum() <= 1  # where a sum's rounding decides


def test_a_pace_at_which_suppliers_would_wait_for_themselves_does_not_compile(tmp_path):
    shutil.copytree(SOURCE.parent, tmp_path / "predictor")
    source = tmp_path / "predictor" / SOURCE.name
    text = source.read_text()
    assert "u32 PACE = 4," in text
    source.write_text(text.replace("u32 PACE = 4,", "u32 PACE = 3,"))
    with pytest.raises(RuntimeError, match="pace"):
        Emulator(tmp_path).compiled(source, SIZES)
