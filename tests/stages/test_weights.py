"""Weights are indexed from headers, in one file or several, and whatever is wrong with a file is told with its name."""

import json

import pytest
import torch
from safetensors.torch import save_file

from duotone.stages.errors import CheckpointError
from duotone.stages.weights import WeightIndex

TENSORS = {
    "a.weight": torch.arange(6, dtype=torch.float32).reshape(2, 3) / 7,
    "a.bias": torch.tensor([1.0, -2.5, 1e-3]),
    "b.weight": torch.ones(4, 1, 2),
}
SHAPES = {name: tuple(tensor.shape) for name, tensor in TENSORS.items()}


def write_single(directory, tensors):
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def write_sharded(directory, tensors):
    """One shard a tensor."""
    weight_map = {}
    for number, (name, tensor) in enumerate(tensors.items()):
        weight_map[name] = f"model-{number}.safetensors"
        save_file({name: tensor}, directory / weight_map[name])
    write_shard_index(directory, weight_map)


def write_shard_index(directory, weight_map):
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


class Module(torch.nn.Module):
    """The part of the tensors whose names begin with `a.`."""

    def __init__(self, width=3):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(2, width))
        self.bias = torch.nn.Parameter(torch.empty(width))


def refused(directory, *parts, expected=None):
    """Reading (and checking) fails, and the message holds every part."""
    with pytest.raises(CheckpointError) as caught:
        WeightIndex.read(directory).check(expected or {})
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("write", [write_single, write_sharded])
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16])
def test_stored_tensors_load_in_the_wanted_dtype(tmp_path, write, stored, wanted):
    write(tmp_path, {name: tensor.to(stored) for name, tensor in TENSORS.items()})
    index = WeightIndex.read(tmp_path)
    index.check(SHAPES)
    loaded = index.load(SHAPES, wanted)
    assert loaded.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert loaded[name].dtype == wanted
        assert torch.equal(loaded[name], tensor.to(stored).to(wanted))


def test_only_the_named_tensors_are_loaded(tmp_path):
    write_single(tmp_path, TENSORS)
    assert list(WeightIndex.read(tmp_path).load(["a.bias"], torch.float32)) == ["a.bias"]


def test_loaded_tensors_outlive_a_change_of_the_file(tmp_path):
    write_single(tmp_path, TENSORS)
    loaded = WeightIndex.read(tmp_path).load(["b.weight"], torch.float32)
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.write(bytes((tmp_path / "model.safetensors").stat().st_size))
    assert torch.equal(loaded["b.weight"], TENSORS["b.weight"])


def test_a_module_is_filled_with_constants_of_its_names_behind_a_prefix(tmp_path):
    write_single(tmp_path, TENSORS)
    filled = WeightIndex.read(tmp_path).fill(Module(), "a.", torch.bfloat16)
    assert torch.equal(filled.weight, TENSORS["a.weight"].bfloat16())
    assert torch.equal(filled.bias, TENSORS["a.bias"].bfloat16())
    assert not any(parameter.requires_grad for parameter in filled.parameters())


def test_a_module_with_a_tensor_of_another_shape_or_name_is_not_filled(tmp_path):
    write_single(tmp_path, TENSORS)
    index = WeightIndex.read(tmp_path)
    with pytest.raises(CheckpointError, match=r"a\.weight has shape \[2, 3\], the configuration asks for \[2, 4\]"):
        index.fill(Module(4), "a.", torch.float32)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: tensor c\.weight is missing"):
        index.fill(Module(), "c.", torch.float32)


def test_extra_tensors_are_no_error(tmp_path):
    write_single(tmp_path, TENSORS)
    WeightIndex.read(tmp_path).check({"a.bias": (3,)})


def test_neither_file_nor_index(tmp_path):
    refused(tmp_path, str(tmp_path), "model.safetensors", "model.safetensors.index.json")


@pytest.mark.parametrize("write", [write_single, write_sharded])
def test_missing_tensor(tmp_path, write):
    write(tmp_path, TENSORS)
    refused(tmp_path, str(tmp_path / "model.safetensors"), "c.weight", "missing", expected={"c.weight": (1,)})


def test_loading_a_tensor_that_is_not_there(tmp_path):
    write_single(tmp_path, TENSORS)
    with pytest.raises(CheckpointError, match=r"c\.weight is missing"):
        WeightIndex.read(tmp_path).load(["c.weight"], torch.float32)


def test_misshaped_tensor_is_told_with_its_shard(tmp_path):
    write_sharded(tmp_path, TENSORS)
    expected = {**SHAPES, "a.weight": (3, 2)}
    refused(tmp_path, str(tmp_path / "model-0.safetensors"), "a.weight", "[2, 3]", "[3, 2]", expected=expected)


def test_neither_float32_nor_bfloat16(tmp_path):
    write_single(tmp_path, {"a": torch.ones(2, dtype=torch.float64)})
    refused(tmp_path, "model.safetensors", "a is F64", expected={"a": (2,)})


@pytest.mark.parametrize("kept_bytes", [0, 4, 30, 200, -1])
def test_truncated_file(tmp_path, kept_bytes):
    write_single(tmp_path, TENSORS)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept_bytes])
    refused(tmp_path, str(file))


@pytest.mark.parametrize(
    "header",
    [b"not json", b"[]", b'{"a": {"dtype": "F32"}}', b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 0]}}'],
)
def test_unreadable_header(tmp_path, header):
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    refused(tmp_path, str(file), "no safetensors file", "invalid JSON in header")


def test_index_that_names_an_absent_shard(tmp_path):
    write_sharded(tmp_path, TENSORS)
    (tmp_path / "model-1.safetensors").unlink()
    refused(tmp_path, "model.safetensors.index.json", "model-1.safetensors", "not there")


def test_index_that_points_out_of_its_directory(tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    save_file(TENSORS, tmp_path / "outside.safetensors")
    write_shard_index(inside, dict.fromkeys(TENSORS, "../outside.safetensors"))
    refused(inside, "model.safetensors.index.json", "../outside.safetensors")


def test_index_that_places_a_tensor_wrongly(tmp_path):
    write_sharded(tmp_path, TENSORS)
    write_shard_index(tmp_path, {"a.weight": "model-0.safetensors", "b.weight": "model-0.safetensors"})
    refused(tmp_path, "model.safetensors.index.json", "b.weight", "model-0.safetensors")


@pytest.mark.parametrize("text", ["", "{", '{"weights": {}}', '{"weight_map": {"a": 1}}'])
def test_unreadable_index(tmp_path, text):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    refused(tmp_path, "model.safetensors.index.json")
