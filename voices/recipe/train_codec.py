"""Trains the codec's decoder, the server's own module, from the readable codes to the teacher's waveform.

    python -m recipe.train_codec --shards DIR --out DIR --adversarial-from 60 --seconds 560 [--resume DIR]

Mel losses alone until `--adversarial-from`, then also against discriminators. With `--resume` decoder and
discriminators go on from that folder. Times count from the start, so that a run ends when it has to.
"""

import argparse
import functools
import math
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from duotone.stages.code2wav.decoder import CodecDecoder
from duotone.stages.code2wav.layers import ConvNeXtBlock, SnakeBeta
from duotone.stages.code2wav.quantizer import Codebook
from duotone.stages.code2wav.transformer import LayerScale

from .codes import VOICING
from .corpus import ShardQueue, Speech, voicing_rows
from .graphs import CapturedStep
from .losses import Discriminators, MelLoss, discriminator_loss, generator_loss, wave_loss
from .sizes import CODEC, FRAME_SAMPLES

CLIP = 50.0
"""Largest norm of a gradient, of either part of the decoder."""
WARM_FRAMES = 4
"""Frames at the start of a crop that the discriminators do not hear: the decoder has no past there."""


@dataclass(frozen=True)
class Plan:
    """How long and how large. Seconds count from the start of the run."""

    seconds: float
    batch: int
    crop_frames: int
    adversarial_from: float
    learning_rate: float
    discriminator_rate: float = 6e-4


@dataclass
class Parts:
    """Everything that learns."""

    decoder: CodecDecoder
    discriminators: Discriminators
    averaged: dict[str, Tensor] = field(default_factory=dict)

    def average(self, decay: float) -> None:
        """Move the averaged decoder weights, which are the ones published, towards the present ones."""
        names = [name for name, _ in self.decoder.named_parameters()]
        now = [parameter.detach() for parameter in self.decoder.parameters()]
        if not self.averaged:
            self.averaged = {name: parameter.clone() for name, parameter in zip(names, now, strict=True)}
        torch._foreach_lerp_([self.averaged[name] for name in names], now, 1 - decay)


def _precise(layer: nn.Module, x: Tensor, state: None = None) -> Tensor:
    with torch.autocast(x.device.type, enabled=False):
        return type(layer).forward(layer, x.float(), state)


def prepare_decoder(decoder: CodecDecoder, fuse: bool) -> None:
    """Ready the serving decoder for bf16 training: random codebooks whose usage stays one, larger residual branches and
    quiet samples to begin with, one kernel for an activation, float32 samples.
    """
    for module in decoder.modules():
        if isinstance(module, ConvNeXtBlock):
            nn.init.constant_(module.gamma, 0.1)
        elif isinstance(module, LayerScale):
            nn.init.constant_(module.scale, 0.3)
        elif isinstance(module, Codebook):
            nn.init.normal_(module.embedding_sum, std=0.5)
            module.cluster_usage.requires_grad_(False)
        elif fuse and isinstance(module, SnakeBeta):
            module.forward = functools.partial(_snake, module)  # type: ignore[method-assign]
    with torch.no_grad():
        codebooks = decoder.quantizer.rvq_rest.codebooks()[VOICING.start - 1 : VOICING.stop - 1]
        for codebook, rows in zip(codebooks, voicing_rows(CODEC.codebook_dim // 2), strict=True):
            codebook.embedding_sum.copy_(0.5 * rows)
    last = decoder.decoder[-1]
    last.conv.weight.data.mul_(0.1)  # type: ignore[union-attr]
    last.forward = functools.partial(_precise, last)


def _snake(module: SnakeBeta, x: Tensor) -> Tensor:
    from .fused_snake import FusedSnake  # Triton exists beside CUDA alone

    return FusedSnake.apply(x, module.alpha, module.beta)


class CodecTrainer:
    """One step after another; which losses count depends on the clock alone."""

    def __init__(self, parts: Parts, plan: Plan, speech: Speech, device: torch.device) -> None:
        self.parts, self.plan, self.speech, self.device = parts, plan, speech, device
        self.mel = MelLoss().to(device)
        self.learning = [parameter for parameter in parts.decoder.parameters() if parameter.requires_grad]
        # The last layer's gradient is a hundred times the others': clipped together, it would decide their step.
        last = list(parts.decoder.decoder[-1].parameters())
        self.clipped = (self.learning[: -len(last)], last)
        self.rates = tuple(torch.tensor(rate, device=device) for rate in (plan.learning_rate, plan.discriminator_rate))
        options = {
            "betas": (0.8, 0.99),
            "weight_decay": 0.01,
            "fused": True,
            "capturable": device.type == "cuda",
        }
        self.generator = torch.optim.AdamW(self.learning, lr=self.rates[0], **options)
        self.critic = torch.optim.AdamW(parts.discriminators.parameters(), lr=self.rates[1], **options)
        self.steps = 0
        self._captured: dict[bool, CapturedStep] = {}

    def rate(self, elapsed: float) -> float:
        """Factor on both learning rates: a warm-up of 200 steps, then a cosine to a twentieth at the end."""
        cosine = 0.525 + 0.475 * math.cos(math.pi * min(1.0, elapsed / self.plan.seconds))
        return min(1.0, (self.steps + 1) / 200) * cosine

    def step(self, elapsed: float) -> dict[str, Tensor]:
        """One update at `elapsed` seconds; returns the losses, on the device."""
        for tensor, rate in zip(self.rates, (self.plan.learning_rate, self.plan.discriminator_rate), strict=True):
            tensor.fill_(rate * self.rate(elapsed))
        adversarial = elapsed > self.plan.adversarial_from
        if adversarial not in self._captured:
            self._captured[adversarial] = CapturedStep(functools.partial(self._update, adversarial), self.device)
        losses = self._captured[adversarial]()
        self.parts.average(0.99 if self.steps < 500 else 0.999)
        self.steps += 1
        return losses

    def _update(self, adversarial: bool) -> dict[str, Tensor]:
        real, codes = self.speech.crops(self.plan.batch, self.plan.crop_frames)
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            made = self.parts.decoder(codes)
        losses = {"mel": self.mel(made, real), "wave": wave_loss(made, real)}
        total = 5 * losses["mel"] + (0.25 if adversarial else 0.7) * losses["wave"]
        if adversarial:
            total = total + self._adversarial(real, made, losses)
        self.generator.zero_grad(set_to_none=True)
        total.backward()
        losses["norm"], losses["last"] = (nn.utils.clip_grad_norm_(part, CLIP) for part in self.clipped)
        self.generator.step()
        return {name: loss.detach() for name, loss in losses.items()}

    def _adversarial(self, real: Tensor, made: Tensor, losses: dict[str, Tensor]) -> Tensor:
        skip = WARM_FRAMES * FRAME_SAMPLES
        real, made = real[:, skip:], made[:, skip:]
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            loss = discriminator_loss(self.parts.discriminators(real), self.parts.discriminators(made.detach()))
        self.critic.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parts.discriminators.parameters(), 10.0)
        self.critic.step()
        self.parts.discriminators.requires_grad_(False)
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            with torch.no_grad():
                heard = self.parts.discriminators(real)
            adversarial, matching = generator_loss(heard, self.parts.discriminators(made))
        self.parts.discriminators.requires_grad_(True)
        losses |= {"critic": loss, "adversarial": adversarial, "matching": matching}
        return 10 * adversarial + 6 * matching


def save(parts: Parts, out: Path) -> None:
    """`decoder` (averaged) and `critics`, in bf16; each written whole or not at all."""
    for name, prefix, tensors in (
        ("decoder", "decoder", parts.averaged),
        ("critics", "discriminators", parts.discriminators.state_dict()),
    ):
        partial = out / f".{name}.partial"
        save_file({f"{prefix}.{k}": v.detach().bfloat16().contiguous().cpu() for k, v in tensors.items()}, partial)
        partial.rename(out / f"{name}.safetensors")


def resume(parts: Parts, folder: Path) -> None:
    """Take over the parts that `folder` holds, as `save` wrote them."""
    for file in folder.glob("*.safetensors"):
        tensors = {k: v.float() for k, v in load_file(file).items()}
        for prefix, module in (("decoder.", parts.decoder), ("discriminators.", parts.discriminators)):
            own = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
            if own:
                module.load_state_dict(own)


def train(parts: Parts, plan: Plan, shards: Path, out: Path, device: torch.device, speech_hours: float) -> None:
    """Run the plan; writes decoder and discriminators under `out` as it goes."""
    started = time.time()
    queue = ShardQueue(shards)
    speech = Speech(int(speech_hours * 45_000), device)
    for shard in queue.wait(8, started + 120):
        speech.add(shard)
    trainer = CodecTrainer(parts, plan, speech, device)
    reported = 0.0
    while (elapsed := time.time() - started) < plan.seconds:
        losses = trainer.step(elapsed)
        if trainer.steps % 8 == 0 and not speech.full:
            for shard in queue.fresh(2):
                speech.add(shard)
        if elapsed > reported + 10:
            reported = elapsed
            values = " ".join(f"{name} {value.item():.3f}" for name, value in losses.items())
            print(f"{elapsed:.0f} s step {trainer.steps} hours {speech.frames / 45_000:.1f} {values}", flush=True)
            save(parts, out)
    save(parts, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--adversarial-from", type=float, default=60)
    parser.add_argument("--seconds", type=float, default=560)
    parser.add_argument("--learning-rate", type=float, default=6e-4)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--crop-frames", type=int, default=14)
    parser.add_argument("--speech-hours", type=float, default=40)
    parser.add_argument(
        "--fuse", action=argparse.BooleanOptionalAction, default=True, help="activations in one Triton kernel"
    )
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    device = torch.device(args.device)
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.benchmark_limit = 4
    parts = Parts(CodecDecoder(CODEC), Discriminators())
    prepare_decoder(parts.decoder, fuse=args.fuse and device.type == "cuda")
    if args.resume:
        resume(parts, args.resume)
    for module in (parts.decoder, parts.discriminators):
        module.to(device)
    args.out.mkdir(parents=True, exist_ok=True)
    plan = Plan(args.seconds, args.batch, args.crop_frames, args.adversarial_from, args.learning_rate)
    train(parts, plan, args.shards, args.out, device, args.speech_hours)


if __name__ == "__main__":
    main()
