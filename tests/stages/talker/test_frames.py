"""Whole frames from hidden states: the predictor's arithmetic, its draws and its noise."""

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from duotone.stages.talker.decoder import Rope
from duotone.stages.talker.frames import FrameCompleter, NewFrames, PlainPredictor, draw_codes, frame_noise
from duotone.stages.types import CODEBOOKS, NO_CODE, Sampling

from .small_predictor import HIDDEN, frame_weights, random_talker, talker_config

CONFIG = talker_config()
TALKER = random_talker(CONFIG)
SAMPLED = Sampling(seed=1)
GREEDY = replace(SAMPLED, temperature=0.0)
DRAWS = 20_000


def complete(completer, hidden, codes, requests):
    """Codes, int16 [rows, 16]; `requests` are (slot, frame number, text id, sampling), one a row."""
    for slot, _, _, sampling in requests:
        completer.enter(slot, sampling)
    slots, numbers, text_ids = (np.array([request[field] for request in requests]) for field in range(3))
    return completer.complete(hidden, codes, NewFrames(np.arange(len(requests)), slots, numbers, text_ids))


@pytest.fixture
def completer():
    return FrameCompleter(PlainPredictor(frame_weights(TALKER)), 4)


def test_each_greedy_code_is_the_likeliest_after_those_before_it(completer):
    hidden, code0 = torch.randn(3, HIDDEN), torch.tensor([5, 59, 71])
    frames = complete(completer, hidden, code0, [(slot, 0, 0, GREEDY) for slot in range(3)]).long()
    assert frames[:, 0].tolist() == code0.tolist()
    embedded = [TALKER.model.codec_embedding(frames[:, 0])]
    embedded += [TALKER.code_predictor.model.codec_embedding[book - 1](frames[:, book]) for book in range(1, 15)]
    inputs = torch.stack([hidden, *embedded], 1)
    logits = TALKER.code_predictor(inputs, Rope.table(CONFIG.code_predictor_config, CODEBOOKS))
    assert torch.equal(logits.argmax(-1), frames[:, 1:])


def test_the_next_input_is_the_sum_of_all_code_embeddings_and_the_text_term(completer):
    hidden, code0 = torch.randn(2, HIDDEN), torch.tensor([1, 2])
    frames = complete(completer, hidden, code0, [(3, 0, 7, GREEDY), (0, 0, 9, GREEDY)]).long()
    books = TALKER.code_predictor.model.codec_embedding
    codes = TALKER.model.codec_embedding(frames[:, 0]) + sum(books[b - 1](frames[:, b]) for b in range(1, 16))
    expected = codes + TALKER.embed_text(torch.tensor([7, 9]))
    torch.testing.assert_close(completer.slot_inputs[[3, 0]], expected, atol=1e-4, rtol=1e-5)
    assert not completer.slot_inputs[[1, 2]].any(), "slots of nobody stay untouched"


def test_a_row_without_codes_is_its_text_term_alone():
    weights = frame_weights(TALKER)
    ids, codes = torch.tensor([4, 5]), torch.full((2, 16), NO_CODE)
    codes[1, 0] = 71
    expected = TALKER.embed_text(ids) + torch.stack((torch.zeros(HIDDEN), TALKER.model.codec_embedding.weight[71]))
    torch.testing.assert_close(weights.embed(ids, codes), expected)


def test_a_frame_depends_on_its_row_alone(completer):
    hidden, codes = torch.randn(4, HIDDEN), torch.tensor([1, 2, 3, 4])
    requests = [(slot, 10 + slot, 0, replace(SAMPLED, seed=slot)) for slot in range(4)]
    together = complete(completer, hidden, codes, requests)
    for row in reversed(range(4)):
        alone = complete(completer, hidden[row : row + 1], codes[row : row + 1], [requests[row]])
        assert torch.equal(alone[0], together[row])


def test_seed_and_frame_number_change_every_codebook(completer):
    hidden, codes = torch.zeros(1, HIDDEN), torch.tensor([0])
    flat = replace(SAMPLED, subtalker_temperature=1e6, subtalker_top_k=0)
    frames = [
        complete(completer, hidden, codes, [(0, frame, 0, replace(flat, seed=seed))])[0, 1:]
        for seed, frame in [(1, 0), (1, 1), (2, 0), (2, 1), (2**64 - 1, 0)]
    ]
    for one in range(5):
        for other in range(one):
            assert (frames[one] == frames[other]).float().mean() < 0.4


def test_rows_that_make_no_frame_touch_no_slot(completer):
    hidden, codes = torch.randn(3, HIDDEN), torch.tensor([1, 2, 3])
    one = np.array([1])
    completer.complete(hidden, codes, NewFrames(one, np.array([2]), np.array([0]), np.array([0])))
    assert completer.slot_inputs[2].any()
    assert not completer.slot_inputs[[0, 1, 3]].any()


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "expected"),
    [
        (1.0, 0, 1.0, [0.1, 0.4, 0.2, 0.3]),
        (0.5, 0, 1.0, [1 / 30, 16 / 30, 4 / 30, 9 / 30]),
        (1.0, 2, 1.0, [0, 4 / 7, 0, 3 / 7]),
        (1.0, 9, 1.0, [0.1, 0.4, 0.2, 0.3]),
        (1.0, 0, 0.6, [0, 4 / 7, 0, 3 / 7]),
        (1.0, 0, 0.75, [0, 4 / 9, 2 / 9, 3 / 9]),
        (1.0, 3, 0.5, [0, 4 / 7, 0, 3 / 7]),
        (1.0, 0, 0.001, [0, 1, 0, 0]),
        (0.0, 0, 1.0, [0, 1, 0, 0]),
    ],
)
def test_codes_are_drawn_as_often_as_their_probability(temperature, top_k, top_p, expected):
    logits = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log().expand(DRAWS, -1)
    uniform = (torch.arange(DRAWS) + 0.5) / DRAWS

    def each(value):
        return torch.full((DRAWS,), value)

    codes = draw_codes(logits, uniform, each(temperature), each(top_k), each(top_p))
    np.testing.assert_allclose(torch.bincount(codes, minlength=4) / DRAWS, expected, atol=2e-4)


def test_the_largest_number_draws_the_last_code_that_is_kept():
    logits = torch.tensor([[3.0, 1.0, 2.0, 0.0]])
    uniform = torch.tensor([np.nextafter(np.float32(1), np.float32(0))])
    code = draw_codes(logits, uniform, torch.tensor([1.0]), torch.tensor([3]), torch.tensor([1.0]))
    assert code.item() == 2


def test_noise_is_uniform_and_a_number_of_its_own_for_each_codebook():
    seeds, frames = np.meshgrid(np.arange(100, dtype=np.uint64), np.arange(100, dtype=np.uint64))
    noise = frame_noise(seeds.ravel(), frames.ravel())
    assert noise.shape == (10_000, 15)
    assert noise.dtype == np.float32
    assert noise.min() >= 0
    assert noise.max() < 1
    counts, _ = np.histogram(noise, bins=50, range=(0, 1))
    assert ((counts - 3000) ** 2 / 3000).sum() < 86, "chi-square of 49 degrees of freedom, p = 0.001"
    assert np.abs(np.corrcoef(noise, rowvar=False) - np.eye(15)).max() < 0.05
    assert len(np.unique(noise[:, 0])) > 9_950, "no two of the seeds and frames share a key"
