"""A random code predictor of awkward sizes, as what making a frame reads."""

from dataclasses import fields, replace

import torch
from torch import Tensor

from duotone.stages.architecture import CodePredictorConfig, TalkerConfig
from duotone.stages.talker.frames import FrameWeights
from duotone.stages.talker.model import Talker

HIDDEN = 40


def talker_config(heads: int = 6, kv_heads: int = 2, entries: int = 50) -> TalkerConfig:
    """Three query heads share a key, 50 entries are no power of two, and the predictor is smaller than the Talker."""
    predictor = CodePredictorConfig(24, 48, 2, heads, kv_heads, 8, 1e-6, 1e6, vocab_size=entries, num_code_groups=16)
    return TalkerConfig(
        *(HIDDEN, 64, 1, 4, 2, 16, 1e-6, 1e6),
        vocab_size=1024 + 60,
        num_code_groups=16,
        text_hidden_size=16,
        text_vocab_size=32,
        codec_bos_id=70,
        codec_eos_token_id=71,
        codec_pad_id=72,
        codec_think_id=73,
        codec_nothink_id=74,
        codec_think_bos_id=75,
        codec_think_eos_id=76,
        codec_language_id={},
        code_predictor_config=predictor,
    )


def fitting_config(heads: int = 16, kv_heads: int = 8, layers: int = 2) -> TalkerConfig:
    """A code predictor whose sizes the frame kernel takes: the published ones, but for fewer layers."""
    predictor = CodePredictorConfig(
        *(1024, 3072, layers, heads, kv_heads, 128, 1e-6, 1e6), vocab_size=2048, num_code_groups=16
    )
    return replace(talker_config(), vocab_size=2048 + 60, code_predictor_config=predictor)


def random_talker(config: TalkerConfig, device: str = "cpu", dtype: torch.dtype = torch.float32) -> Talker:
    """With weights large enough for codes to depend on everything before them."""
    torch.manual_seed(0)
    talker = Talker(config)
    for parameter in talker.parameters():
        torch.nn.init.normal_(parameter, std=1.0 if parameter.dim() == 1 else 0.5)
    return talker.requires_grad_(False).to(device, dtype)


def frame_weights(talker: Talker) -> FrameWeights:
    """The frame weights of a Talker."""
    model = talker.model
    return FrameWeights.of(
        talker.config,
        talker.codec_head.weight,
        model.codec_embedding.weight,
        model.text_embedding.weight,
        talker.text_projection,
        talker.code_predictor,
    )


def fitting_weights(layers: int = 2, device: str = "cpu") -> FrameWeights:
    """What the frame kernel takes, bfloat16; sums within are a thousand and more."""
    talker = random_talker(fitting_config(layers=layers), device, torch.bfloat16)
    for parameter in talker.code_predictor.parameters():
        parameter.mul_(0.06 if parameter.dim() > 1 else 1)
    return frame_weights(talker)


def wide(weights: FrameWeights) -> FrameWeights:
    """What a pass reads, in float64."""
    decoder = weights.decoder
    layers = tuple(
        replace(layer, **{field.name: getattr(layer, field.name).double() for field in fields(layer)[1:]})
        for layer in decoder.layers
    )
    rope = weights.rope.to(weights.rope.cos.device, torch.float64)
    decoder = replace(decoder, layers=layers, norm=decoder.norm.double())
    return replace(weights, decoder=decoder, heads=weights.heads.double(), rope=rope)


def error(value: Tensor, expected: Tensor) -> float:
    """Root mean square over root mean square."""
    return ((value.double() - expected).square().sum() / expected.square().sum()).sqrt().item()
