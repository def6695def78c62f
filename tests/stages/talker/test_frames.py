"""Whole frames from hidden states: the predictor's arithmetic, its draws and its noise."""

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from duotone.stages.talker.decoder import Rope
from duotone.stages.talker.frames import FrameMaker, NewFrames, PlainPredictor, draw_codes, frame_noise
from duotone.stages.types import CODEBOOKS, NO_CODE, Sampling

from .small_predictor import HIDDEN, frame_weights, random_talker, talker_config

CONFIG = talker_config()
TALKER = random_talker(CONFIG)
SAMPLED = Sampling(seed=1)
GREEDY = replace(SAMPLED, temperature=0.0)
DRAWS = 20_000


def make(maker, hidden, requests):
    """`requests` are (slot, frame number, text id, sampling), one a row."""
    for slot, _, _, sampling in requests:
        maker.enter(slot, sampling)
    return make_next(maker, hidden, [request[:3] for request in requests])


def make_next(maker, hidden, frames):
    """`frames` are (slot, frame number, text id), one a row, of requests that entered before."""
    slots, numbers, text_ids = np.array(frames).T
    return maker.make(hidden, NewFrames(np.arange(len(frames)), slots, numbers, text_ids))


@pytest.fixture
def maker():
    return FrameMaker(PlainPredictor(frame_weights(TALKER)), 4)


def test_each_greedy_code_is_the_likeliest_after_those_before_it(maker):
    hidden = torch.randn(3, HIDDEN)
    made = make(maker, hidden, [(slot, 0, 0, GREEDY) for slot in range(3)])
    frames = made.codes.long()
    assert torch.equal(frames[:, 0], TALKER.codec_head(hidden)[:, :60].argmax(-1))
    assert torch.equal(made.begun[0], frames[:, 0])
    embedded = [TALKER.model.codec_embedding(frames[:, 0])]
    embedded += [TALKER.code_predictor.model.codec_embedding[book - 1](frames[:, book]) for book in range(1, 15)]
    inputs = torch.stack([hidden, *embedded], 1)
    logits = TALKER.code_predictor(inputs, Rope.table(CONFIG.code_predictor_config, CODEBOOKS))
    assert torch.equal(logits.argmax(-1), frames[:, 1:])


def test_a_request_may_end_no_sooner_than_it_is_allowed_to(maker):
    hidden = TALKER.codec_head.weight[CONFIG.codec_eos_token_id].expand(3, -1)
    patient = replace(GREEDY, min_new_frames=3)
    made = make(maker, hidden, [(slot, number, 0, patient) for slot, number in enumerate((0, 2, 3))])
    assert (made.begun[0, :2] < 60).all()
    assert made.begun[0, 2] == CONFIG.codec_eos_token_id


def test_codes_that_a_request_has_had_are_penalised_and_those_of_others_are_not(maker):
    hidden = torch.randn(1, HIDDEN)
    shy = replace(GREEDY, repetition_penalty=1e6)
    first, second = (make(maker, hidden, [(1, number, 0, shy)]).begun[0].item() for number in (0, 1))
    assert first != second
    assert make_next(maker, hidden, [(1, 2, 0)]).begun[0].item() not in (first, second)
    assert make(maker, hidden, [(1, 0, 0, shy)]).begun[0].item() == first, "another request in the same slot"
    maker.enter(2, shy, codes0=[first])
    assert make_next(maker, hidden, [(2, 1, 0)]).begun[0].item() == second, "resumed after its first frame"


def test_the_next_input_is_the_sum_of_all_code_embeddings_and_the_text_term(maker):
    frames = make(maker, torch.randn(2, HIDDEN), [(3, 0, 7, GREEDY), (0, 0, 9, GREEDY)]).codes.long()
    books = TALKER.code_predictor.model.codec_embedding
    codes = TALKER.model.codec_embedding(frames[:, 0]) + sum(books[b - 1](frames[:, b]) for b in range(1, 16))
    expected = codes + TALKER.embed_text(torch.tensor([7, 9]))
    torch.testing.assert_close(maker.slot_inputs[[3, 0]], expected, atol=1e-4, rtol=1e-5)
    assert not maker.slot_inputs[[1, 2]].any(), "slots of nobody stay untouched"


def test_a_row_without_codes_is_its_text_term_alone():
    weights = frame_weights(TALKER)
    ids, codes = torch.tensor([4, 5]), torch.full((2, 16), NO_CODE)
    codes[1, 0] = 71
    expected = TALKER.embed_text(ids) + torch.stack((torch.zeros(HIDDEN), TALKER.model.codec_embedding.weight[71]))
    torch.testing.assert_close(weights.embed(ids, codes), expected)


def test_a_frame_depends_on_its_row_alone(maker):
    hidden = torch.randn(4, HIDDEN)
    requests = [(slot, 0, 0, replace(SAMPLED, seed=slot)) for slot in range(4)]
    together = make(maker, hidden, requests).codes
    for row in reversed(range(4)):
        alone = make(maker, hidden[row : row + 1], [requests[row]]).codes
        assert torch.equal(alone[0], together[row])


def test_seed_and_frame_number_change_every_codebook(maker):
    flat = replace(SAMPLED, temperature=1e6, top_k=0, subtalker_temperature=1e6, subtalker_top_k=0)
    frames = [
        make(maker, torch.zeros(1, HIDDEN), [(0, frame, 0, replace(flat, seed=seed))]).codes[0]
        for seed, frame in [(1, 0), (1, 1), (2, 0), (2, 1), (2**64 - 1, 0)]
    ]
    for one in range(5):
        for other in range(one):
            assert (frames[one] == frames[other]).float().mean() < 0.4


def test_rows_that_make_no_frame_touch_no_slot(maker):
    one = np.array([1])
    made = maker.make(torch.randn(3, HIDDEN), NewFrames(one, np.array([2]), np.array([0]), np.array([0])))
    assert made.begun[1].tolist() == [0, 1, 0]
    assert maker.slot_inputs[2].any()
    assert not maker.slot_inputs[[0, 1, 3]].any()


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
    assert noise.shape == (10_000, 16)
    assert noise.dtype == np.float32
    assert noise.min() >= 0
    assert noise.max() < 1
    counts, _ = np.histogram(noise, bins=50, range=(0, 1))
    assert ((counts - 3200) ** 2 / 3200).sum() < 86, "chi-square of 49 degrees of freedom, p = 0.001"
    assert np.abs(np.corrcoef(noise, rowvar=False) - np.eye(16)).max() < 0.05
    assert len(np.unique(noise[:, 0])) > 9_950, "no two of the seeds and frames share a key"
