# SPDX-License-Identifier: Apache-2.0
"""NumPy fallback of fused ops without a C compiler.

Executes each function's NumPy statements from the manifest, in float64.
"""

import ctypes
import importlib
import math
import types
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kernel_fusion._sizes import value

Array = np.ndarray[Any, Any]
STORED = {
    "f32": np.float32,
    "f16": np.float16,
    "f64": np.float64,
    "bf16": np.uint16,
    "i32": np.int32,
    "i64": np.int64,
    "u8": np.uint8,
}
BROADCAST = -(2**63)
LOW = np.uint64(2**32 - 1)


def special() -> Any:
    """Returns scipy.special, or a substitute for the functions that statements use."""
    try:
        return importlib.import_module("scipy.special")
    except ImportError:
        erf, erfc = (np.vectorize(f, otypes=[float]) for f in (math.erf, math.erfc))
        return types.SimpleNamespace(
            expit=lambda x: np.exp(np.minimum(x, 0)) / (1 + np.exp(-np.abs(x))),
            erf=erf,
            ndtr=lambda x: 0.5 * erfc(-x * math.sqrt(0.5)),
        )


def dropout_mask(count: int, p: float, seed: int, offset: int) -> Array:
    """Returns the mask of a dropout as the kernels draw it: Philox4x32-10, 16 bits per element."""
    blocks = np.arange(-(-count // 8), dtype=np.uint64)
    c = [
        blocks & LOW,
        blocks >> np.uint64(32),
        np.full_like(blocks, offset & 0xFFFFFFFF),
        np.full_like(blocks, offset >> 32),
    ]
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [
            (b >> np.uint64(32)) ^ c[1] ^ np.uint64(k0),
            b & LOW,
            (a >> np.uint64(32)) ^ c[3] ^ np.uint64(k1),
            a & LOW,
        ]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    words = np.stack(
        [part for word in c for part in (word & np.uint64(0xFFFF), word >> np.uint64(16))], 1
    ).reshape(-1)[:count]
    return np.asarray(words >= round(65536 * p))


def widened(a: Array, dtype: str) -> Array:
    if dtype == "bf16":
        return (a.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return a if dtype in ("i64", "i32", "u8") else a.astype(np.float64)


def narrowed(a: Array, dtype: str) -> Array:
    if dtype != "bf16":
        return a.astype(STORED[dtype])
    bits = np.ascontiguousarray(a, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(a), np.uint16(0x7FC0), rounded)


class Interpreted:
    """Functions of one op, with the interface of `_library.Library`."""

    def __init__(self, made: Mapping[str, Any]):
        self.functions = {f["name"]: f for f in made["functions"] if not f["state"]}
        self.statements = {
            key: compile("\n".join(found["numpy"]), f"<{key}>", "exec")
            for key, found in made["statements"].items()
        }

    def call(
        self,
        function: str,
        tensors: Sequence[int | None],
        sizes: Sequence[int],
        strides: Sequence[int] | None,
        scalars: Sequence[float],
        rng: int | None = None,
        workspace: bool = False,
    ) -> None:
        f = self.functions[function]
        values = self._values(f, sizes, scalars)
        fields = dict(
            zip(
                next((a["fields"] for a in f["arguments"] if a["role"] == "strides"), ()),
                strides or (),
            )
        )
        arguments = [a for a in f["arguments"] if "use" in a]
        arrays = {
            a["name"]: None if at is None else self._array(a, at, values, fields)
            for a, at in zip(arguments, tensors)
        }
        names = values | {
            "np": np,
            "sp": special(),
            "T": {"f32": np.float32, "f16": np.float16}.get(f["dtypes"][0], np.float64),
        }
        for a in arguments:
            if a["role"] == "in" and not a["unread"]:
                names[a["name"]] = self._input(a, arrays[a["name"]], values)
        if f["dropout"]:
            names |= self._mask(f, values, rng)
        with np.errstate(all="ignore"):
            exec(self.statements[f["statements"]], names)
            for a in arguments:
                out = arrays[a["name"]]
                if a["role"] != "in" and out is not None:
                    out[...] = narrowed(np.asarray(names[a["name"]]), a["dtype"])

    @staticmethod
    def _values(
        f: Mapping[str, Any], sizes: Sequence[int], scalars: Sequence[float]
    ) -> dict[str, Any]:
        def named(*roles: str) -> list[str]:
            return [a["name"] for a in f["arguments"] if a["role"] in roles]

        return dict(zip([*named("size"), *named("integer")], sizes)) | dict(
            zip(named("scalar", "act_scalar", "probability"), scalars)
        )

    @staticmethod
    def _extents(a: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[int, ...]:
        return tuple(value(extent, values) for extent in a["extents"])

    def _array(
        self, a: Mapping[str, Any], at: int, values: Mapping[str, Any], fields: Mapping[str, int]
    ) -> Array:
        """Returns a view of a tensor's memory, in its manifest shape."""
        shape, dtype = self._extents(a, values), np.dtype(STORED[a["dtype"]])
        steps = [dtype.itemsize * int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
        for i, field in enumerate(reversed(a["strides"])):
            given = fields.get(field, 0)
            steps[i] = 0 if given == BROADCAST else given * dtype.itemsize or steps[i]
        reach = (
            dtype.itemsize + sum((n - 1) * step for n, step in zip(shape, steps))
            if 0 not in shape
            else 0
        )
        memory: Any = (ctypes.c_char * max(reach, 1)).from_address(at or ctypes.addressof(_nothing))
        return np.ndarray(shape, dtype, memory, strides=steps)

    def _input(self, a: Mapping[str, Any], given: Array | None, values: Mapping[str, Any]) -> Array:
        return (
            np.full(self._extents(a, values), a["absent"], np.float64)
            if given is None
            else widened(given, a["dtype"])
        )

    def _mask(
        self, f: Mapping[str, Any], values: Mapping[str, Any], rng: int | None
    ) -> dict[str, Any]:
        assert rng is not None
        seed, offset = (ctypes.c_uint64 * 2).from_address(rng)
        whole = next(self._extents(a, values) for a in f["arguments"] if a.get("kind") == "elem")
        p = values["p"]
        return {
            "keep": dropout_mask(math.prod(whole), p, seed, offset).reshape(whole),
            "keep_scale": 1 / (1 - p) if p < 1 else 0.0,
        }


_nothing = (ctypes.c_char * 1)()
