# SPDX-License-Identifier: Apache-2.0
"""Functions of ops made by kf.fuse, and functions on GPUs, compiled at their first call.

A C++ compiler compiles a GPU's launchers; NVRTC compiles its kernels. See _first_call.py.
"""

import functools
import pathlib
from typing import Any

from kernel_fusion import _compilers, _gpu, _nvrtc
from kernel_fusion._first_call import GENERATOR, Compiled, Unit, generator


class Own(Compiled):
    """Functions of a user-made op on the CPU."""

    def __init__(self, name: str, entry: dict[str, Any], label: str):
        super().__init__()
        self.op_name, self.entry, self.label = name, entry, label

    @functools.cached_property
    def on_gpu(self) -> "OwnOnGpu":
        made = OwnOnGpu(self.op_name, self.entry, self.label)
        made.set_op(self.op)
        return made

    def digest_inputs(self) -> list[Any]:
        return [self.op_name, self.entry, *super().digest_inputs()]

    def selection(self, unit: Unit) -> Any:
        from kfgen.interfaces import fused

        return fused.selection(self.op_name, self.entry, list(dict.fromkeys(unit.dtypes)))


class OnGpu(Compiled):
    """Functions on GPUs, with the interface of `_gpu.Gpu`."""

    def digest_inputs(self) -> list[Any]:
        return [self.op.pattern, *self.shared_inputs()]

    def shared_inputs(self) -> list[Any]:
        return [
            "cuda",
            _compilers.COMPILE_CUDA,
            _compilers.LINK,
            _compilers.more(),
            generator("packed.h", "loader.h", "loader.cpp", "memory.cpp"),
        ]

    def compiler(self) -> str | None:
        found = _compilers.cuda()
        return found[0] if found else None

    def needs(self) -> str:
        return f"a GPU call needs a C++ compiler (apt install g++) and CUDA's headers: {_nvrtc.HOW}"

    def build(self, path: pathlib.Path, unit: Unit) -> None:
        from kernel_fusion import _build

        with GENERATOR:
            chosen = self.selection(unit)
        _build.cuda_library(path, chosen, names=self.functions(unit))

    def fallback(self, unit: Unit, why: str) -> Any:
        raise NotImplementedError(f"{self.where(unit)}: {why}")


class OwnOnGpu(OnGpu, Own):
    """Functions of a user-made op on GPUs."""

    def digest_inputs(self) -> list[Any]:
        return [self.op_name, self.entry, *OnGpu.digest_inputs(self)]

    def open(self, path: pathlib.Path) -> Any:
        return _gpu.Gpu(path, text=self.text)

    def text(self, function: str) -> str:
        from kfgen.render import source

        return str(source.source(self.selection(self.units[function]), function))


class NamedOnGpu(OnGpu):
    """Functions of one of kf's own ops on GPUs: the package's, if it was built with them."""

    def open(self, path: pathlib.Path) -> Any:
        return _gpu.Gpu(path, driver=_gpu.library().driver)

    def library_of(self, function: str) -> Any:
        found = _gpu.library()
        if found.find(function) >= 0:
            return found
        if found.built:
            raise found.lacks(function)
        return super().library_of(function)

    def is_ready(self, unit: Unit) -> bool:
        ahead = _gpu.ahead()
        has = ahead is not None and any(ahead.find(f) >= 0 for f in self.functions(unit))
        return has or super().is_ready(unit)


class Loader(OnGpu):
    """The loader of kernels without launchers, for a package that was built without them."""

    UNIT = Unit("", ())

    def name(self, unit: Unit) -> str:
        return "loader"

    def where(self, unit: Unit) -> str:
        return "kf on a GPU"

    def digest_inputs(self) -> list[Any]:
        return self.shared_inputs()

    def build(self, path: pathlib.Path, unit: Unit) -> None:
        from kernel_fusion import _build

        _build.cuda_library(path, None)

    def open(self, path: pathlib.Path) -> Any:
        return _gpu.Gpu(path)

    def offline(self, unit: Unit) -> Exception:
        return ImportError(str(super().offline(unit)))

    def fallback(self, unit: Unit, why: str) -> Any:
        raise ImportError(f"{self.where(unit)}: {why}")
