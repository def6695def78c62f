"""The codec's training: what a step changes, and going on from what was saved."""

from pathlib import Path

import numpy as np
import pytest
import torch

from duotone.stages.code2wav.decoder import CodecDecoder
from duotone.voices.recipe.corpus import Shard, Speech
from duotone.voices.recipe.losses import Discriminators
from duotone.voices.recipe.sizes import BOOKS, CODEC, CODES, FRAME_SAMPLES
from duotone.voices.recipe.train_codec import CodecTrainer, Parts, Plan, prepare_decoder, resume, save

Trained = tuple[Parts, dict[str, torch.Tensor], dict[str, torch.Tensor]]
"""The parts after one step, the decoder's parameters before it, and the losses."""
FRAMES = 6
pytestmark = pytest.mark.filterwarnings("ignore:Mismatch dtype")  # autocast leaves a norm's weight in float32


@pytest.fixture(scope="module")
def trained() -> Trained:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    codes = rng.integers(0, CODES, (FRAMES, BOOKS)).astype(np.uint8)
    samples = rng.integers(-3000, 3000, FRAMES * FRAME_SAMPLES).astype(np.int16)
    shard = Shard([""], np.array([FRAMES]), np.array([0]), codes, np.zeros((0, 4), np.int32), samples)
    speech = Speech(FRAMES, torch.device("cpu"))
    speech.add(shard)
    parts = Parts(CodecDecoder(CODEC), Discriminators())
    prepare_decoder(parts.decoder, fuse=False)
    before = {name: parameter.detach().clone() for name, parameter in parts.decoder.named_parameters()}
    plan = Plan(seconds=1, batch=1, crop_frames=FRAMES, adversarial_from=0, learning_rate=1e-3)
    losses = CodecTrainer(parts, plan, speech, torch.device("cpu")).step(0.5)
    return parts, before, losses


def test_a_step_moves_all_that_learns_and_nothing_else(
    trained: Trained,
) -> None:
    parts, before, losses = trained
    still = {n for n, p in parts.decoder.named_parameters() if torch.equal(p, before[n])}
    counts_or_encoders = ("cluster_usage", "rvq_first.input_proj.weight", "rvq_rest.input_proj.weight")
    assert still == {name for name in before if name.endswith(counts_or_encoders)}
    assert all(loss.isfinite() for loss in losses.values())
    assert {"mel", "wave", "critic", "adversarial", "matching"} <= set(losses)


def test_training_goes_on_from_what_was_saved(trained: Trained, tmp_path: Path) -> None:
    parts, _, _ = trained
    save(parts, tmp_path)
    later = Parts(CodecDecoder(CODEC), Discriminators())
    resume(later, tmp_path)
    for name, parameter in later.decoder.named_parameters():
        assert torch.equal(parameter, parts.averaged[name].bfloat16().float()), name
    for ours, theirs in zip(later.discriminators.parameters(), parts.discriminators.parameters(), strict=True):
        assert torch.equal(ours, theirs.bfloat16().float())
