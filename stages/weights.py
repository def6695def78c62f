"""Tensors in safetensors files: an index read from the headers alone, and modules filled from it.

The API process indexes; only a worker loads, which is where torch comes in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
from rich.console import Console
from rich.progress import Progress
from safetensors import SafetensorError, safe_open

from .errors import CheckpointError

if TYPE_CHECKING:
    import torch

SINGLE_FILE = "model.safetensors"
SHARD_INDEX = "model.safetensors.index.json"
DTYPES = frozenset({"F32", "BF16"})

Shapes = dict[str, tuple[int, ...]]
"""Tensor names, as in the files, and the shapes that they must have."""
Module = TypeVar("Module", bound="torch.nn.Module")


def shapes(module: torch.nn.Module, prefix: str) -> Shapes:
    """What a module asks of a file, in which its names stand behind `prefix`."""
    return {prefix + name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies. `dtype` is safetensors' name for it (`F32`, `BF16`, …)."""

    shape: tuple[int, ...]
    dtype: str
    file: Path


@dataclass(frozen=True)
class WeightIndex:
    """The tensors of one model directory, in a single file or in shards that `model.safetensors.index.json` names."""

    source: Path
    """The file that says which tensors there are; error messages name it."""
    tensors: Mapping[str, StoredTensor]

    @classmethod
    def read(cls, directory: Path) -> WeightIndex:
        """Read the headers. Raises CheckpointError: no such file, an unreadable or truncated one, an absent shard."""
        single, shard_index = directory / SINGLE_FILE, directory / SHARD_INDEX
        if single.is_file():
            return cls(single, _read_header(single))
        if shard_index.is_file():
            return cls(shard_index, _read_shards(shard_index))
        raise CheckpointError(f"{directory}: neither {SINGLE_FILE} nor {SHARD_INDEX} is there")

    def check(self, expected: Shapes) -> None:
        """Raise CheckpointError unless every expected tensor is there in its shape, as float32 or bfloat16."""
        for name, shape in expected.items():
            stored = self._find(name)
            if stored.shape != shape:
                raise CheckpointError(
                    f"{stored.file}: tensor {name} has shape {list(stored.shape)},"
                    f" the configuration asks for {list(shape)}"
                )
            if stored.dtype not in DTYPES:
                raise CheckpointError(f"{stored.file}: tensor {name} is {stored.dtype}, neither F32 nor BF16")

    def load(self, names: Iterable[str], dtype: torch.dtype, device: str = "cpu") -> dict[str, torch.Tensor]:
        """The named tensors, converted to `dtype` on `device`. Raises CheckpointError for a name that is not there.

        They are copies: a file that is replaced while a server runs does not reach into it.
        """
        by_file: dict[Path, list[str]] = {}
        for name in names:
            by_file.setdefault(self._find(name).file, []).append(name)
        loaded: dict[str, torch.Tensor] = {}
        console = Console(stderr=True)
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task(f"loading {self.source.parent.name}", total=sum(map(len, by_file.values())))
            for file, file_names in by_file.items():
                with safe_open(file, framework="pt", device=device) as reader:
                    for name in file_names:
                        loaded[name] = reader.get_tensor(name).to(dtype, copy=True)
                        progress.advance(task)
        return loaded

    def fill(self, module: Module, prefix: str, dtype: torch.dtype, device: str = "cpu") -> Module:
        """Give a module its tensors, as constants of `dtype` on `device`. Raises CheckpointError as `check` does."""
        wanted = shapes(module, prefix)
        self.check(wanted)
        tensors = self.load(wanted, dtype, device)
        module.load_state_dict({name.removeprefix(prefix): tensor for name, tensor in tensors.items()}, assign=True)
        return module.requires_grad_(False)

    def _find(self, name: str) -> StoredTensor:
        if name not in self.tensors:
            raise CheckpointError(f"{self.source}: tensor {name} is missing")
        return self.tensors[name]


class _ShardIndex(msgspec.Struct):
    weight_map: dict[str, str]


def _read_header(file: Path) -> dict[str, StoredTensor]:
    """The tensors of one safetensors file. Raises CheckpointError also for a file that is shorter than it says."""
    try:
        with safe_open(file, framework="numpy") as reader:
            found = {name: reader.get_slice(name) for name in reader.keys()}  # noqa: SIM118
            return {name: StoredTensor(tuple(it.get_shape()), it.get_dtype(), file) for name, it in found.items()}
    except SafetensorError as error:
        raise CheckpointError(f"{file}: no safetensors file, or an interrupted download: {error}") from error


def _read_shards(index: Path) -> dict[str, StoredTensor]:
    """The tensors that an index file maps to shards beside it."""
    try:
        weight_map = msgspec.json.decode(index.read_bytes(), type=_ShardIndex).weight_map
    except msgspec.MsgspecError as error:
        raise CheckpointError(f"{index}: {error}") from error
    headers: dict[str, dict[str, StoredTensor]] = {}
    for shard in sorted(set(weight_map.values())):
        file = index.parent / shard
        if Path(shard).name != shard or not file.is_file():
            raise CheckpointError(f"{index}: weight_map names the shard {shard!r}, which is not there")
        headers[shard] = _read_header(file)
    tensors: dict[str, StoredTensor] = {}
    for name, shard in weight_map.items():
        if name not in headers[shard]:
            raise CheckpointError(f"{index}: weight_map places tensor {name} in {shard}, which does not hold it")
        tensors[name] = headers[shard][name]
    return tensors
