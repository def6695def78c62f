"""Checkpoints of published sizes without their gigabytes: configuration, and weight files that are all hole.

`python -m tests.gpu.hollow DIR` makes one that a server can serve for measuring: a tokenizer, random codec weights, and
a Talker for vLLM's `load_format: dummy`, which draws random weights on the device.
"""

import argparse
import json
import math
import shutil
from pathlib import Path

import msgspec
import torch
from safetensors.torch import save_file

from duotone.stages.architecture import CodecConfig, TalkerConfig
from duotone.stages.checkpoint import CODEC_FOLDER, TOKENIZER_FILES
from duotone.stages.code2wav.decoder import PREFIX as CODEC_PREFIX
from duotone.stages.code2wav.decoder import CodecDecoder
from duotone.stages.talker.model import PREFIX as TALKER_PREFIX
from duotone.stages.talker.model import Talker
from duotone.stages.weights import Shapes, shapes

from ..golden_outputs import GOLDEN

PUBLISHED_1B7 = Path(__file__).parent / "published_1b7"
BYTES_PER_WEIGHT = 2


def hollow_checkpoint(configuration: Path, directory: Path) -> Path:
    """A checkpoint that passes every check and holds zeros, for `load_format: dummy`. It takes no room on a disk."""
    shutil.copytree(configuration, directory)
    config = json.loads((directory / "config.json").read_bytes())["talker_config"]
    with torch.device("meta"):
        talker = Talker(msgspec.convert(config, TalkerConfig))
    write_hole(directory / "model.safetensors", shapes(talker, TALKER_PREFIX))
    write_hole(directory / CODEC_FOLDER / "model.safetensors", codec_shapes(directory))
    for name in TOKENIZER_FILES:
        (directory / name).touch()
    return directory


def servable_checkpoint(configuration: Path, directory: Path, seed: int = 0) -> Path:
    """A hollow checkpoint with the small golden tokenizer and random codec weights, a quarter of a gigabyte.

    Zeros would do for the arithmetic, but a GPU computes faster on them than on numbers.
    """
    hollow_checkpoint(configuration, directory)
    for name in TOKENIZER_FILES:
        shutil.copy(GOLDEN / "custom_voice" / "checkpoint" / name, directory / name)
    torch.manual_seed(seed)
    weights = {}
    for name, shape in codec_shapes(directory).items():
        # A codebook's row is its sum over its usage, which is a count.
        values = torch.rand(shape) + 0.5 if name.endswith("cluster_usage") else 0.02 * torch.randn(shape)
        weights[name] = values.bfloat16()
    save_file(weights, directory / CODEC_FOLDER / "model.safetensors")
    return directory


def codec_shapes(directory: Path) -> Shapes:
    """Of the decoder that a checkpoint's configuration asks for."""
    config = json.loads((directory / CODEC_FOLDER / "config.json").read_bytes())["decoder_config"]
    with torch.device("meta"):
        return shapes(CodecDecoder(msgspec.convert(config, CodecConfig)), CODEC_PREFIX)


def write_hole(file: Path, shapes: Shapes) -> None:
    """A safetensors file of bfloat16 zeros that are never written."""
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + BYTES_PER_WEIGHT * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    encoded = json.dumps(header).encode()
    with file.open("wb") as stream:
        stream.write(len(encoded).to_bytes(8, "little") + encoded)
        stream.truncate(8 + len(encoded) + end)


def main() -> None:
    """Make a servable checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    servable_checkpoint(PUBLISHED_1B7, parser.parse_args().directory)


if __name__ == "__main__":
    main()
