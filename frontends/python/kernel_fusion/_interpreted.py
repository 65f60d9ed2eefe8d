# SPDX-License-Identifier: Apache-2.0
"""NumPy fallback of CPU functions without a C compiler.

Executes each function's NumPy statements from the manifest, in float64.
"""

import ctypes
import importlib
import math
import threading
import types
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from kfgen.interfaces import packed
from kfgen.model import shapes

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


# Parameters of kfp_run (native/packed.h).
RUN = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_void_p),
    *[ctypes.POINTER(ctypes.c_int64)] * 2,
    ctypes.POINTER(ctypes.c_double),
    *[ctypes.c_void_p] * 2,
    ctypes.c_size_t,
)
SPACE = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
TEXT_OF = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int)
TEXT = ctypes.CFUNCTYPE(ctypes.c_void_p)
TENSORS = ("in", "inout", "out", "sum", "lengths")
NUMBERS = ("scalar", "act_scalar", "beta", "probability")


class Interpreted:
    """Functions of one op, with the interface of `_library.Library`."""

    path = "NumPy: there is no C compiler"

    def __init__(self, made: Mapping[str, Any]):
        self.functions = {f["name"]: f for f in made["functions"] if not f["state"]}
        self.names, self.now = [*self.functions], _Now()
        # The same as a library exports, for the shim between PyTorch and kf.
        self.symbols: dict[str, Any] = {
            "kfp_run": RUN(self._run),
            "kfp_space": SPACE(lambda number, sizes: 0),
            "kfp_error": TEXT_OF(lambda code: self.now.address()),
            "kfp_detail": TEXT(lambda: ctypes.addressof(_nothing)),
            "kfp_reason": TEXT(lambda: self.now.address()),
        }
        self.statements = {
            key: compile("\n".join(found["numpy"]), f"<{key}>", "exec")
            for key, found in made["statements"].items()
        }

    def find(self, function: str) -> int:
        return self.names.index(function) if function in self.functions else -1

    def address(self, symbol: str) -> int | None:
        found = self.symbols.get(symbol)
        return None if found is None else ctypes.cast(found, ctypes.c_void_p).value

    def _run(
        self, number: int, t: Any, n: Any, d: Any, s: Any, r: int | None, w: Any, b: int
    ) -> int:
        f = self.functions[self.names[number]]

        def count(*roles: str) -> int:
            return sum(a["role"] in roles for a in f["arguments"])

        fields = next((a["fields"] for a in f["arguments"] if a["role"] == "strides"), ())
        # C code between here and the caller cannot propagate an exception.
        try:
            self.call(
                f["name"],
                t[: count(*TENSORS)],
                n[: len(packed.numbers(f))],
                d[: len(fields)] if d else None,
                s[: count(*NUMBERS)] if s else (),
                r,
            )
            return 0
        except BaseException as e:
            self.now.text = ctypes.create_string_buffer(str(e).encode())
            return 1

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
        if "count" not in values:
            self._compute(f, tensors, values, fields, rng)
            return
        *given, lengths = tensors
        lists = [a["list"] for a in f["arguments"] if "use" in a]
        for i in range(values["count"]):
            one = [
                (ctypes.c_void_p * (i + 1)).from_address(at)[i] if at and is_list else at
                for at, is_list in zip(given, lists)
            ]
            n = (ctypes.c_int64 * (i + 1)).from_address(lengths or 0)[i]
            self._compute(f, one, values | {"length": n}, fields, rng)

    def _compute(
        self,
        f: Mapping[str, Any],
        tensors: Sequence[int | None],
        values: dict[str, Any],
        fields: Mapping[str, int],
        rng: int | None,
    ) -> None:
        """Computes a function of tensors; of lists, its update of one tensor of each."""
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
            given = arrays[a["name"]]
            if a["role"] in ("in", "inout") and not a["unread"]:
                names[a["name"]] = self._input(a, given, values)
            elif a["role"] != "in" and values.get("beta"):
                names[a["name"]] = 0.0 if given is None else widened(given, a["dtype"])
        if f["dropout"]:
            names |= self._mask(f, values, rng)
        with np.errstate(all="ignore"):
            exec(self.statements[self._formula(f, arrays)], names)
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

        return dict(zip(packed.numbers(f), sizes)) | dict(zip(named(*NUMBERS), scalars))

    @staticmethod
    def _formula(f: Mapping[str, Any], arrays: Mapping[str, Any]) -> str:
        """Key of the statements: a gradient may be given the result in place of its inputs."""
        by_result = f["statements_by_result"]
        read = [
            a["name"]
            for a in f["arguments"]
            if a["role"] == "in" and not a["unread"] and a["absent"] is None
        ]
        if by_result and any(arrays[name] is None for name in read):
            return str(by_result)
        return str(f["statements"])

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

    def _input(
        self, a: Mapping[str, Any], given: Array | None, values: Mapping[str, Any]
    ) -> Array | None:
        if given is not None:
            return widened(given, a["dtype"])
        if not isinstance(a["absent"], (int, float)):
            return None  # the statements say what is used instead
        return np.full(self._extents(a, values), a["absent"], np.float64)

    def _mask(
        self, f: Mapping[str, Any], values: Mapping[str, Any], rng: int | None
    ) -> dict[str, Any]:
        assert rng is not None
        seed, offset = (ctypes.c_uint64 * 2).from_address(rng)
        whole = shapes.mask_extents(f["masked"], values)
        p = values["p"]
        return {
            "keep": dropout_mask(math.prod(whole), p, seed, offset).reshape(whole),
            "keep_scale": 1 / (1 - p) if p < 1 else 0.0,
        }


class _Now(threading.local):
    text: Any = None  # why the thread's last call failed

    def address(self) -> int:
        return ctypes.addressof(_nothing if self.text is None else self.text)


_nothing = (ctypes.c_char * 1)()
