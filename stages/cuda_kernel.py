"""CUDA kernels of our own: compiled where they run for the sizes known there, loaded, launched. Of Hopper GPUs."""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cuda.bindings import driver, nvrtc

SHARED_BYTES = 232_448
"""What one block can have on Hopper."""
CAPABILITY = (9, 0)
_SHARED_HEADER = Path(__file__).with_name("sm90.cuh")


def compiled(source: Path, sizes: dict[str, int]) -> bytes:
    """A kernel, with the headers beside it and those that all share, for these sizes, as machine code. Needs no GPU.

    Raises:
        RuntimeError: with the compiler's messages.
    """
    options = [b"--gpu-architecture=sm_90a", b"-std=c++17", b"-default-device"]
    options += [f"-D{name}={value}".encode() for name, value in sizes.items()]
    headers = [*sorted(source.parent.glob("*.cuh")), _SHARED_HEADER]
    texts, names = [header.read_bytes() for header in headers], [header.name.encode() for header in headers]
    (program,) = _checked(
        nvrtc.nvrtcCreateProgram(source.read_bytes(), source.name.encode(), len(headers), texts, names)
    )
    (error,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if error:
        log = bytes(_checked(nvrtc.nvrtcGetProgramLogSize(program))[0])
        _checked(nvrtc.nvrtcGetProgramLog(program, log))
        raise RuntimeError(log.decode())
    code = bytes(_checked(nvrtc.nvrtcGetCUBINSize(program))[0])
    _checked(nvrtc.nvrtcGetCUBIN(program, code))
    _checked(nvrtc.nvrtcDestroyProgram(program))
    return code


class Kernel:
    """On the current device, which has a context: tensors stand on it. A block has all shared memory."""

    def __init__(self, code: bytes, name: str, threads: int) -> None:
        """`threads` of a block."""
        (module,) = _checked(driver.cuModuleLoadData(code))
        (self._kernel,) = _checked(driver.cuModuleGetFunction(module, name.encode()))
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _checked(driver.cuFuncSetAttribute(self._kernel, attribute, SHARED_BYTES))
        self._threads = threads

    def launch(
        self, blocks: int, stream: int, pointers: Sequence[int], ints: Sequence[int], floats: Sequence[float] = ()
    ) -> None:
        """With its arguments in this order. It may start, and bring weights, while the launch in front of it ends."""
        early = driver.CUlaunchAttribute()
        early.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        early.value.programmaticStreamSerializationAllowed = 1
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = blocks, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = self._threads, 1, 1
        config.sharedMemBytes = SHARED_BYTES
        config.hStream = stream
        config.attrs, config.numAttrs = [early], 1
        kinds = (ctypes.c_void_p,) * len(pointers) + (ctypes.c_int,) * len(ints) + (ctypes.c_float,) * len(floats)
        _checked(driver.cuLaunchKernelEx(config, self._kernel, ((*pointers, *ints, *floats), kinds), 0))


def _checked(result: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a call returned.

    Raises:
        RuntimeError: the call failed.
    """
    error, *values = result
    if error:
        raise RuntimeError(f"CUDA: {error!r}")
    return tuple(values)
