"""Codes are drawn from the distribution that was asked for, row by row."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from duotone.stages.talker.sampling import Draw, DrawRows, Noise, drawable_ids, penalise
from duotone.stages.types import Sampling

NUMBERS = 4096
GRID = (torch.arange(NUMBERS) + 0.5) / NUMBERS
"""Evenly spaced numbers: of each code, the share that draws it is its probability."""


def distribution(logits, draw):
    """What the draw asks for, in float64 and one code after the other."""
    order = sorted(range(len(logits)), key=lambda code: -logits[code])[: draw.top_k or None]
    weights = {code: np.exp((logits[code] - logits[order[0]]) / draw.temperature) for code in order}
    total = sum(weights.values())
    kept, mass = {}, 0.0
    for code in order:
        if kept and mass >= draw.top_p:
            break
        kept[code] = weights[code]
        mass += weights[code] / total
    shares = np.zeros(len(logits))
    for code, weight in kept.items():
        shares[code] = weight / sum(kept.values())
    return shares


@pytest.mark.parametrize(
    "draw",
    [
        Draw(temperature=1.0, top_k=0, top_p=1.0),
        Draw(temperature=0.3, top_k=0, top_p=1.0),
        Draw(temperature=2.0, top_k=7, top_p=1.0),
        Draw(temperature=0.9, top_k=0, top_p=0.5),
        Draw(temperature=0.9, top_k=12, top_p=0.8),
        Draw(temperature=0.9, top_k=1, top_p=1.0),
        Draw(temperature=0.9, top_k=500, top_p=1.0),
        Draw(temperature=5.0, top_k=0, top_p=0.0),
    ],
    ids=str,
)
def test_share_of_a_code_is_its_probability(draw):
    logits = torch.randn(40, generator=torch.Generator().manual_seed(3)) * 2
    codes = draw(logits.expand(NUMBERS, -1), GRID)
    shares = torch.bincount(codes, minlength=40).numpy() / NUMBERS
    expected = distribution(logits.double().tolist(), draw)
    assert np.abs(shares - expected).max() <= 2 / NUMBERS
    assert not shares[expected == 0].any()


@given(
    logits=st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=30, unique=True),
    top_k=st.integers(0, 40),
    top_p=st.floats(0, 1),
    uniform=st.sampled_from([0.0, 0.25, 1 - 2**-24]),
)
def test_drawn_code_is_always_one_that_is_left(logits, top_k, top_p, uniform):
    draw = Draw(1.0, top_k, top_p)
    code = int(draw(torch.tensor([logits]), torch.tensor([uniform])))
    # Rounding may keep one code more or less where top_p falls on a border.
    assert distribution(logits, Draw(1.0, top_k, min(1.0, top_p + 1e-5)))[code] > 0


def test_code_without_a_chance_is_never_drawn():
    logits = torch.tensor([[0.0, -torch.inf, 0.0, -torch.inf]])
    draw = Draw(1.0, top_k=0, top_p=1.0)
    drawn = {int(draw(logits, torch.tensor([number]))) for number in (0.0, 0.3, 0.5, 0.9, 1 - 2**-24)}
    assert drawn == {0, 2}


def test_temperature_zero_takes_the_likeliest_whatever_else_is_asked():
    logits = torch.tensor([[0.1, 0.9, 0.5], [3.0, -1.0, 2.0]])
    assert Draw(0.0, top_k=2, top_p=0.1)(logits, torch.tensor([0.99, 0.99])).tolist() == [1, 0]


def test_greedy_request_is_greedy_in_all_codebooks():
    assert Draw.later_codes(Sampling(seed=0, temperature=0.0, subtalker_temperature=0.9)).temperature == 0
    assert Draw.later_codes(Sampling(seed=0, temperature=0.9, subtalker_temperature=0.4)).temperature == 0.4


def test_rows_with_different_draws_are_drawn_as_if_alone():
    generator = torch.Generator().manual_seed(5)
    logits, uniform = torch.randn(6, 33, generator=generator), torch.rand(6, generator=generator)
    often, greedy = Draw(0.9, 5, 1.0), Draw(0.0, 5, 1.0)
    draws = [often, greedy, often, Draw(1.5, 0, 0.7), Draw(0.9, 8, 1.0), greedy]
    together = DrawRows.of(draws, torch.device("cpu"))(logits, uniform)
    alone = [int(draw(logits[row : row + 1], uniform[row : row + 1])) for row, draw in enumerate(draws)]
    assert together.tolist() == alone


def test_penalty_lowers_seen_ids_alone_on_either_side_of_zero():
    logits = torch.tensor([[2.0, -2.0, 2.0, 0.0], [3.0, -3.0, 1.0, 1.0]])
    seen = torch.tensor([[True, True, False, True], [True, True, False, False]])
    penalised = penalise(logits, seen, torch.tensor([[2.0], [1.0]]))
    assert penalised.tolist() == [[1.0, -4.0, 2.0, 0.0], [3.0, -3.0, 1.0, 1.0]]


def test_only_codes_and_the_end_can_be_drawn(custom_voice):
    assert drawable_ids(custom_voice.talker).tolist() == [*range(64), 166]


@pytest.mark.parametrize("seed", [0, 7, -1, 2**63])
def test_noise_belongs_to_the_seed(seed):
    first, again, other = Noise(seed), Noise(seed), Noise(seed + 1)
    frames = np.stack([first.frame() for _ in range(3)])
    assert np.array_equal(frames, np.stack([again.frame() for _ in range(3)]))
    assert not np.array_equal(frames[0], frames[1])
    assert not np.array_equal(frames[0], other.frame())
    assert (frames >= 0).all()
    assert (frames < 1).all()
