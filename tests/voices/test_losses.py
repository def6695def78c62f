"""What the codec's losses hear, and what they let pass."""

import math

import pytest
import torch
from torch import Tensor

from duotone.voices.recipe.losses import MelLoss, SpectrumDiscriminator, wave_loss
from duotone.voices.recipe.sizes import SAMPLE_RATE


def noise(level_db: float) -> Tensor:
    return 10 ** (level_db / 20) * torch.randn(1, SAMPLE_RATE // 2, generator=torch.Generator().manual_seed(0))


def tone(hertz: float) -> Tensor:
    return 0.1 * torch.sin(2 * math.pi * hertz / SAMPLE_RATE * torch.arange(SAMPLE_RATE // 2))[None]


def test_noise_that_nobody_hears_costs_nothing() -> None:
    mel, silence = MelLoss(), torch.zeros(1, SAMPLE_RATE // 2)
    assert mel(noise(-110), silence) < 0.02
    assert mel(noise(-50), silence) > 1


def test_a_weak_sound_counts_about_as_much_as_a_strong_one() -> None:
    mel, weak, strong = MelLoss(), noise(-50), noise(-20)
    assert mel(0.5 * weak, weak) > 0.7 * mel(0.5 * strong, strong)


@pytest.mark.parametrize(("hertz", "least", "most"), [(200, 1.9, 2.1), (4000, 0, 0.05)])
def test_the_waveform_counts_where_the_codes_tell_its_phase(hertz: float, least: float, most: float) -> None:
    voiced = tone(200)
    assert least <= wave_loss(voiced - 2 * tone(hertz), voiced) <= most


def test_critics_hear_a_hiss_beside_speech_that_is_thirty_times_as_strong() -> None:
    torch.manual_seed(0)
    critic = SpectrumDiscriminator(512)
    plain, weak, strong = (
        critic(samples)[1][0] for samples in (tone(200), tone(200) + noise(-65), tone(200) + noise(-35))
    )
    assert (weak - plain).abs().mean() > 0.1 * (strong - plain).abs().mean()
