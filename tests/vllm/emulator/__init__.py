"""Runs the code predictor's frame kernel on a CPU, in an order that a seed chooses. See `emulator.cpp`."""

import ctypes
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
_NAME = "predictor_frames"
_FLAGS = (
    *("-std=c++17", "-O3", "-march=native", "-ffp-contract=off", "-fno-strict-aliasing"),
    *("-fPIC", "-shared", "-fvisibility=hidden", "-fcf-protection=none", "-Wno-unknown-pragmas"),
)


class Emulator:
    """In place of what `cuda_kernel` has: `compiled` and, for `Kernel`, `kernel`."""

    def __init__(self, folder: Path) -> None:
        """`folder` is where kernels are compiled."""
        self.folder = folder
        self.seed = 0
        """Of the next launch; every launch adds one."""
        self._built = 0

    def compiled(self, source: Path, sizes: dict[str, int]) -> Path:
        """A kernel for these sizes, as a library; the headers beside it are used, but for those of the same name here.

        Raises:
            RuntimeError: with the compiler's messages.
        """
        self._built += 1
        folder = self.folder / f"{source.stem}{self._built}"
        folder.mkdir()
        for path in (source, *source.parent.glob("*.cuh"), *HERE.glob("*.c*")):
            shutil.copy(path, folder)
        library = folder / "kernel.so"
        defines = [f"-D{name}={value}" for name, value in sizes.items()]
        defines += [f'-DKERNEL_SOURCE="{source.name}"', f"-DKERNEL_NAME={_NAME}"]
        command = ["g++", *_FLAGS, *defines, str(folder / "emulator.cpp"), "-o", str(library)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise RuntimeError(result.stderr)
        return library

    def kernel(self, library: Path, name: str, threads: int) -> "Kernel":
        """What `compiled` made, of which the compiler knew the name."""
        assert name == _NAME
        return Kernel(self, library, threads)


class Kernel:
    """Launches return when all threads have ended."""

    def __init__(self, emulator: Emulator, library: Path, threads: int) -> None:
        self._emulator, self._threads = emulator, threads
        self._launch = ctypes.CDLL(str(library)).launch
        self._launch.restype = ctypes.c_char_p
        self._launch.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_uint64), ctypes.c_uint64]

    def launch(
        self, blocks: int, stream: int, pointers: Sequence[int], ints: Sequence[int], floats: Sequence[float] = ()
    ) -> None:
        """With its arguments in this order.

        Raises:
            RuntimeError: the kernel misuses something, or nothing moves any more; with what each warp waits for.
        """
        words = [struct.unpack("<I", struct.pack("<f", number))[0] for number in floats]
        arguments = [*pointers, *(number & 0xFFFFFFFF for number in ints), *words]
        given = (ctypes.c_uint64 * len(arguments))(*arguments)
        wrong = self._launch(blocks, self._threads, given, self._emulator.seed)
        self._emulator.seed += 1
        if wrong:
            raise RuntimeError(wrong.decode())
