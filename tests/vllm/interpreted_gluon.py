"""Gluon on a machine without a GPU: the same programs as plain Triton, which the interpreter runs. Layouts say where
values stand and not what they are, so they are left out; shared memory is a list of what was copied into it.
"""

import sys
import types

import triton.experimental
import triton.language as tl


def install() -> None:
    """Make `triton.experimental.gluon` such a thing. Call it before anything imports a Gluon program."""
    language = _Language("triton.experimental.gluon.language")
    ampere = types.ModuleType("triton.experimental.gluon.language.nvidia.ampere")
    vars(ampere).update(async_copy=_AsyncCopy, mma_v2=lambda a, b, sums: tl.dot(a, b, sums, input_precision="ieee"))
    gluon = types.ModuleType("triton.experimental.gluon")
    vars(gluon).update(jit=triton.jit, language=language)
    sys.modules |= {module.__name__: module for module in (gluon, language, ampere)}
    triton.experimental.gluon = gluon


class _Language(types.ModuleType):
    """What Triton has under the same name is looked up at each use: the interpreter replaces it while it runs."""

    def __getattr__(self, name: str) -> object:
        return _no_layout if name.endswith("Layout") else getattr(tl, name)

    @staticmethod
    def arange(start: int, stop: int, layout: None) -> tl.tensor:
        return tl.arange(start, stop)

    @staticmethod
    def zeros(shape: list[int], dtype: tl.dtype, layout: None) -> tl.tensor:
        return tl.zeros(shape, dtype)

    @staticmethod
    def convert_layout(value: tl.tensor, layout: None) -> tl.tensor:
        return value

    @staticmethod
    def allocate_shared_memory(dtype: tl.dtype, shape: list[int], layout: None) -> "_Shared":
        return _Shared([_View() for _ in range(shape[0])])


def _no_layout(*arguments: object) -> None:
    """Any layout."""


class _View:
    """One buffer of shared memory, perhaps with its dimensions in another order."""

    def __init__(self, values: tl.tensor | None = None) -> None:
        self.values = values

    def permute(self, order: list[int]) -> "_View":
        return _View(tl.permute(self.values, order))

    def load(self, layout: None) -> tl.tensor:
        return self.values


class _Shared:
    """Several buffers."""

    def __init__(self, views: list[_View]) -> None:
        self._views = views

    def index(self, at: int) -> _View:
        return self._views[int(at)]


class _AsyncCopy:
    """Copies that have arrived when they are asked for."""

    @staticmethod
    def async_copy_global_to_shared(view: _View, source: tl.tensor) -> None:
        view.values = tl.load(source)

    @staticmethod
    def commit_group() -> None: ...

    @staticmethod
    def wait_group(outstanding: int) -> None: ...
