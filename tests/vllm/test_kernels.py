"""The kernels compute what `frames` computes: on a Hopper GPU, and what frames become in Triton's interpreter, too."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from duotone.stages.talker.frame_kernel import (
    ADDED_PARTS,
    BLOCKS,
    by_heads,
    compiled,
    fits,
    packed,
    runs_on,
    taking_turns,
)
from duotone.stages.talker.frames import WORDS, FrameMaker, NewFrames, PlainPredictor, Rows
from duotone.stages.talker.kernels import FusedPredictor, finish
from duotone.stages.types import Sampling

from ..stages.talker.small_predictor import (
    HIDDEN,
    error,
    fitting_config,
    fitting_weights,
    frame_weights,
    random_talker,
    talker_config,
    wide,
)

pytestmark = pytest.mark.filterwarnings("default")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
on_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or not runs_on(torch.device("cuda")), reason="the kernel is Hopper's"
)
REQUESTS = [
    Sampling(seed=1, temperature=0.0),
    Sampling(seed=2, subtalker_temperature=0.7, subtalker_top_k=5),
    Sampling(seed=3, subtalker_temperature=1.3, subtalker_top_k=0, subtalker_top_p=0.8),
    Sampling(seed=4, subtalker_top_k=20, subtalker_top_p=0.6),
    Sampling(seed=5, subtalker_top_k=0),
]
EACH = np.arange(len(REQUESTS))
FRAMES = NewFrames(EACH, EACH, np.zeros_like(EACH), np.full_like(EACH, 7))


@pytest.fixture(scope="module")
def weights():
    made = fitting_weights(device=DEVICE)
    assert fits(made)
    return made


@on_hopper
@pytest.mark.parametrize("rows", [1, 11, 16, 17, 40, 64, 65, 128, 200])
def test_logits_and_cache_are_those_of_the_reference_for_any_number_of_rows(weights, rows):
    exact, fused = PlainPredictor(wide(weights)), FusedPredictor(weights)
    expected_cache, cache = exact.weights.new_cache(rows).zero_(), weights.new_cache(rows).zero_()
    generator = torch.Generator().manual_seed(rows)
    for book, positions in ((1, 2), (2, 1), (3, 1)):
        inputs = torch.randn(rows, positions, weights.heads.shape[2], generator=generator).to(DEVICE, torch.bfloat16)
        expected = exact.logits(inputs.double(), expected_cache, book)
        for value, right in zip(fused.logits(inputs.clone(), cache, book), expected, strict=True):
            assert error(value, right.double()) < 2e-2
    assert error(cache, expected_cache) < 2e-2


@on_hopper
def test_the_number_of_rows_changes_no_bit_of_a_row(weights):
    predictor = FusedPredictor(weights)
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(150, 2, weights.heads.shape[2], generator=generator).to(DEVICE, torch.bfloat16)
    together = predictor.logits(inputs.clone(), weights.new_cache(150), 1)
    for row in (0, 17, 100, 149):
        alone = predictor.logits(inputs[row : row + 1].clone(), weights.new_cache(1), 1)
        assert torch.equal(alone[0], together[row])


@on_hopper
def test_a_predictor_makes_room_for_more_rows_and_goes_on(weights):
    predictor = FusedPredictor(weights)
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(200, 2, weights.heads.shape[2], generator=generator).to(DEVICE, torch.bfloat16)
    few, many, again = (predictor.logits(inputs[:n].clone(), weights.new_cache(n), 1) for n in (3, 200, 3))
    assert torch.equal(few, again)
    assert torch.equal(few, many[:3])


@on_hopper
def test_whole_frames_from_a_captured_graph_are_those_of_launches(weights):
    frames = FrameMaker(FusedPredictor(weights), len(REQUESTS))
    for slot, sampling in enumerate(REQUESTS):
        frames.enter(slot, sampling)
    hidden = torch.randn(len(REQUESTS), HIDDEN, generator=torch.Generator().manual_seed(3)).to(DEVICE, torch.bfloat16)
    expected = frames.make(hidden, FRAMES).codes.clone()
    expected_inputs = frames.slot_inputs.clone()
    frames.capture([2, 8])
    for _ in range(3):
        frames.slot_inputs.zero_()
        assert torch.equal(frames.make(hidden, FRAMES).codes[: len(REQUESTS)], expected)
        assert torch.equal(frames.slot_inputs[EACH], expected_inputs[EACH])


def test_the_kernel_compiles_for_the_published_sizes_without_a_gpu():
    sizes = {"HIDDEN": 1024, "HEADS": 16, "KV_HEADS": 8, "INNER": 3072, "ENTRIES": 2048, "LAYERS": 5}
    sizes |= {"FIRST_ENTRIES": 2049, "FIRST_STRIDE": 2056}
    assert b"predictor_frames" in compiled(sizes)
    with pytest.raises(RuntimeError, match=r"layout\.cuh.*heads"):
        compiled(sizes | {"KV_HEADS": 5})


@pytest.mark.parametrize(("outputs", "inputs", "parts"), [(4096, 1024, 1), (1024, 3072, ADDED_PARTS)])
def test_packed_weights_stand_where_the_tensor_cores_read_them(outputs, inputs, parts):
    weight = torch.randn(outputs, inputs, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = torch.randn(inputs, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    columns, size = parts * outputs // BLOCKS, inputs // parts
    blocks = packed(weight, parts).view(-1, parts, columns * size)
    for share in (0, 1, len(blocks) - 1):
        sums = torch.zeros(columns, dtype=torch.float64)
        for part in range(parts):
            for step in range(size // 16):
                first = part * size + 16 * step
                sums += instruction_right(blocks[share, part], columns, step) @ x[first : first + 16]
        torch.testing.assert_close(sums, weight[share * columns : (share + 1) * columns] @ x)


def test_gates_and_what_they_open_stand_where_one_thread_ends_two_neighbours():
    rows = taking_turns(torch.arange(2 * 48)[:, None]).flatten().view(-1, 2, 4, 2)  # eight, half, thread, gate and up
    for thread in range(4):
        inner = [8 + 2 * thread, 8 + 2 * thread + 1]
        assert rows[1, :, thread].tolist() == [[each, 48 + each] for each in inner]


def test_a_key_value_head_stands_behind_its_queries():
    rows = by_heads(torch.arange((16 + 8 + 8) * 128)[:, None], heads=16).flatten()
    third = rows.view(8, 4, 128)[3]  # its two queries, key and value
    assert third[:, 0].tolist() == [6 * 128, 7 * 128, (16 + 3) * 128, (24 + 3) * 128]
    assert third[2].tolist() == list(range(19 * 128, 20 * 128))


def instruction_right(part, columns, step):
    """[columns, 16] of an instruction: rows of 128 bytes, bits 4 to 6 of an address exchanged by its bits 7 to 9."""
    column, k = torch.meshgrid(torch.arange(columns), torch.arange(16), indexing="ij")
    byte = step // 4 * columns * 128 + column * 128 + step % 4 * 32 + 2 * k
    return part[(byte ^ (byte >> 7 & 7) << 4) // 2]


def test_a_frame_becomes_the_next_input_of_its_slot_alone():
    weights = frame_weights(random_talker(talker_config(), DEVICE))
    codes = torch.randint(0, 50, (3, 16), device=DEVICE)
    codes[1, 0] = weights.ids - 1
    words = torch.zeros(3, WORDS, dtype=torch.int32)
    words[:, 0], words[:, 1], words[:, 6] = torch.tensor([[4, 0, 2], [1, 5, 3], [1, 1, 0]])
    rows = Rows.of(words.to(DEVICE))
    slot_inputs, expected_inputs = (torch.zeros(5, HIDDEN, device=DEVICE) for _ in range(2))
    made = finish(weights, codes, rows, slot_inputs)
    expected = PlainPredictor(weights).finish(codes, rows, expected_inputs)
    assert torch.equal(made.codes, expected.codes)
    assert torch.equal(made.begun, expected.begun)
    assert made.begun[0, 1] == weights.eos_id
    torch.testing.assert_close(slot_inputs, expected_inputs)


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": 512},
        {"vocab_size": 1000},
        {"num_attention_heads": 24},
        {"num_attention_heads": 8, "num_key_value_heads": 4},
        {"num_attention_heads": 8},
        {"num_hidden_layers": 3},
        {},
    ],
)
def test_weights_that_the_kernel_does_not_take_are_left_to_the_reference(change):
    config = fitting_config()
    if not change:
        assert not fits(frame_weights(random_talker(config)))  # float32
        assert fits(frame_weights(random_talker(config, dtype=torch.bfloat16)))
        return
    config = replace(config, code_predictor_config=replace(config.code_predictor_config, **change))
    assert not fits(frame_weights(random_talker(config, dtype=torch.bfloat16)))
