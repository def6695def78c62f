"""Checkpoints of published sizes without their gigabytes: configuration, and weight files that are all hole."""

import json
import math
import shutil
from pathlib import Path

import msgspec

from duotone.stages.architecture import CodecConfig, Shapes, TalkerConfig, codec_shapes, talker_shapes
from duotone.stages.checkpoint import CODEC_FOLDER, TOKENIZER_FILES

PUBLISHED_1B7 = Path(__file__).parent / "published_1b7"
BYTES_PER_WEIGHT = 2


def hollow_checkpoint(configuration: Path, directory: Path) -> Path:
    """A checkpoint that passes every check and holds zeros, for `load_format: dummy`. It takes no room on a disk."""
    shutil.copytree(configuration, directory)
    talker = json.loads((directory / "config.json").read_bytes())["talker_config"]
    codec = json.loads((directory / CODEC_FOLDER / "config.json").read_bytes())["decoder_config"]
    write_hole(directory / "model.safetensors", talker_shapes(msgspec.convert(talker, TalkerConfig)))
    write_hole(directory / CODEC_FOLDER / "model.safetensors", codec_shapes(msgspec.convert(codec, CodecConfig)))
    for name in TOKENIZER_FILES:
        (directory / name).touch()
    return directory


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
