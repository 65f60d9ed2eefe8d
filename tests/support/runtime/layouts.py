# SPDX-License-Identifier: Apache-2.0
"""Random calls of functions on tensors with arbitrary strides, compared with NumPy, exactly if
values are integers. Used by tests/runtime."""

import ctypes

import numpy as np
import runtime_api
import runtime_ops

FILL = 77  # Fill value of memory that a call must not write.
OPS = {
    "elementwise": ["add", "sub", "mul", "maximum"],
    "rows": ["softmax", "layer_norm"],
    "axis": ["sum", "amax"],
    "products": ["matmul_nt", "matmul_nn"],
}
DTYPES = ("f32", "f64", "bf16")


def bf16(x):
    """Returns integers of up to 8 bits in bfloat16 storage."""
    return (np.asarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def stored(x, word):
    return (
        bf16(x)
        if word == "bf16"
        else np.asarray(x).astype(runtime_api.NUMPY[runtime_ops.DTYPES[word]])
    )


class Host:
    """Host memory that the tested device accesses directly."""

    def bytes(self, n):
        return np.zeros(max(n, 1), np.uint8)

    def free(self):
        pass


class Managed:
    """Managed memory of a GPU, with the methods of Host."""

    def __init__(self):
        self.cudart, self.made = ctypes.CDLL("libcudart.so"), []

    def bytes(self, n):
        p = ctypes.c_void_p()
        assert (
            self.cudart.cudaMallocManaged(
                ctypes.byref(p), ctypes.c_size_t(max(n, 1)), ctypes.c_uint(1)
            )
            == 0
        )
        self.made.append(p)
        return np.ctypeslib.as_array((ctypes.c_uint8 * max(n, 1)).from_address(p.value))

    def free(self):
        for p in self.made:
            assert self.cudart.cudaFree(p) == 0
        self.made = []


class StridedArray:
    """An array with a random layout: permuted dimensions, steps above 1, padding after each
    dimension, and an offset."""

    def __init__(self, memory, rng, values, word, plain=0.2):
        self.word, dtype, n = (
            word,
            np.dtype(runtime_api.NUMPY[runtime_ops.DTYPES[word]]),
            values.ndim,
        )
        order = np.arange(n) if rng.random() < 0.5 else rng.permutation(n)
        steps = np.ones(n, int) if rng.random() < 0.6 else rng.integers(1, 3, n)
        more = np.zeros(n, int) if rng.random() < 0.5 else rng.integers(0, 4, n)
        first = int(rng.integers(0, 5))
        if rng.random() < plain:
            order, steps, more, first = np.arange(n), np.ones(n, int), np.zeros(n, int), 0
        extents = [int(values.shape[d] * steps[d] + more[d]) for d in order]
        count = int(np.prod(extents, dtype=np.int64)) + first
        self.room = memory.bytes(count * dtype.itemsize).view(dtype)[:count]
        self.room[...] = stored(FILL, word)
        self.array = self._view(self.room[first:].reshape(extents), order, steps, values.shape)
        self.array[...] = stored(values, word)
        self.wanted = self.room.copy()
        self.of_wanted = self._view(
            self.wanted[first:].reshape(extents), order, steps, values.shape
        )

    def _view(self, room, order, steps, shape):
        view = room[(*(slice(0, int(shape[d] * steps[d]), int(steps[d])) for d in order), ...)]
        return view.transpose(np.argsort(order)) if len(order) else view

    def expect(self, values, tolerance=0.0):
        """Checks the array's values, and that nothing else in its memory was written."""
        if tolerance:
            found = self.array.astype(np.float64)
            assert np.abs(found - values).max(initial=0) <= tolerance
            self.of_wanted[...] = self.array
        else:
            self.of_wanted[...] = stored(values, self.word)
        assert self.room.tobytes() == self.wanted.tobytes()


def shape(rng, least=0, most=6):
    """Returns a random shape, mostly of small extents, sometimes with a long one."""
    found = [int(n) for n in rng.integers(1, 7, rng.integers(least, most + 1))]
    if found and rng.random() < 0.5:
        found[rng.integers(len(found)) if rng.random() < 0.4 else -1] = int(rng.integers(8, 300))
    while np.prod(found, dtype=np.int64) > 20000:
        found[found.index(max(found))] = 2
    return tuple(found)


def whole(rng, of, most=8):
    return rng.integers(-most, most + 1, of).astype(np.float64)


def fewer(rng, of):
    """Returns a random shape that broadcasts to `of`."""
    found = [1 if rng.random() < 0.25 else n for n in of]
    return tuple(found[rng.integers(0, len(found) + 1) if rng.random() < 0.2 else 0 :])


def act(x, word):
    return np.maximum(x, 0) if word == "relu" else x


def elementwise(rng, op):
    """Returns (inputs by name, results by name, activation, True if backward)."""
    f = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "maximum": np.maximum}[op]
    of, activation = shape(rng), str(rng.choice(["none", "relu"]))
    if rng.random() < 0.25 and op in ("add", "mul"):
        a, b, dout = (whole(rng, of, 5) for _ in range(3))
        dy = np.where(f(a, b) > 0, dout, 0) if activation == "relu" else dout
        da, db = (dy * b, dy * a) if op == "mul" else (dy, dy)
        return {"a": a, "b": b, "out": None, "dout": dout}, {"da": da, "db": db}, activation, True
    a, b = whole(rng, fewer(rng, of)), whole(rng, fewer(rng, of))
    return {"a": a, "b": b}, {"out": act(f(a, b), activation)}, activation, False


def rows(rng, op):
    of = shape(rng, 1, 5)
    x = rng.standard_normal(of)
    if op == "softmax":
        e = np.exp(x - x.max(-1, keepdims=True))
        return {"x": x}, {"out": e / e.sum(-1, keepdims=True)}, {}
    weight, bias = (rng.standard_normal(of[-1:]) for _ in range(2))
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    rstd = 1 / np.sqrt(var + 0.5)
    results = {"out": (x - mean) * rstd * weight + bias, "mean": mean[..., 0], "rstd": rstd[..., 0]}
    return {"x": x, "weight": weight, "bias": bias}, results, {"eps": 0.5}


def axis(rng, op):
    of = shape(rng, 1, 5)
    x, dim = whole(rng, of, 3), int(rng.integers(len(of)))
    return {"x": x}, {"out": x.sum(dim) if op == "sum" else x.max(dim)}, dim


def products(rng, op):
    batch, (m, n, k) = shape(rng, 0, 3)[:2], (int(x) for x in rng.integers(1, 20, 3))
    a, b = (
        whole(rng, (*batch, m, k), 2),
        whole(rng, (*batch, n, k) if op == "matmul_nt" else (*batch, k, n), 2),
    )
    return (
        {"a": a, "b": b},
        {"out": a @ (np.swapaxes(b, -1, -2) if op == "matmul_nt" else b)},
        {"alpha": 1.0, "beta": 0.0},
    )


class Case:
    """One random call, drawn from a seed."""

    def __init__(self, ops, memory, of, functions, seed):
        self.ops, self.memory = ops, memory
        self.rng = rng = np.random.default_rng(seed)
        self.op = str(rng.choice(OPS[of]))
        self.dtype = str(rng.choice(DTYPES if of in ("elementwise", "axis") else DTYPES[:2]))
        self.scalars, self.dim, self.tolerance, activation, bwd = {}, None, 0.0, "none", False
        if of == "elementwise":
            inputs, results, activation, bwd = elementwise(rng, self.op)
        elif of == "axis":
            inputs, results, self.dim = axis(rng, self.op)
            self.dtype = (
                "f32"
                if max((np.abs(r).max(initial=0) for r in results.values()), default=0) > 256
                else self.dtype
            )
        else:
            inputs, results, self.scalars = (rows if of == "rows" else products)(rng, self.op)
            self.tolerance = {"f32": 3e-5, "f64": 1e-12}[self.dtype] if of == "rows" else 0.0
        names = (self.op, f"{self.op}_{{act}}")
        self.f = next(
            f
            for f in functions
            if f["op"] in names
            and (f["dtypes"], f["activation"], f["bwd"]) == ([self.dtype], activation, bwd)
        )
        self._draw_arrays(inputs, results)

    def _draw_arrays(self, inputs, results):
        words = {a["name"]: a["dtype"] for a in self.f["arguments"] if "use" in a}
        self.results, self.arrays = results, {}
        for name, values in inputs.items():
            self.arrays[name] = (
                None if values is None else StridedArray(self.memory, self.rng, values, words[name])
            )
        for name, values in results.items():
            same = [
                x
                for x in inputs
                if inputs[x] is not None
                and inputs[x].shape == values.shape
                and words[x] == words[name]
            ]
            if (
                len(results) == 1
                and self.scalars == {}
                and self.dim is None
                and same
                and self.rng.random() < 0.2
            ):
                self.arrays[name] = self.arrays[same[0]]  # shared: an output in place of an input
            else:
                self.arrays[name] = StridedArray(
                    self.memory, self.rng, np.zeros(values.shape), words[name]
                )

    def run(self, ctx, via="function"):
        handles = {
            n: x and self.ops.over(ctx, x.array, runtime_ops.DTYPES[x.word])
            for n, x in self.arrays.items()
        }
        code = self.ops.call(
            ctx,
            self.f,
            handles,
            self.ops.ids[self.f["activation"]],
            self.scalars,
            dim=self.dim,
            via=via,
        )
        assert code == 0, (
            self.f["name"],
            {n: x and (x.array.shape, x.array.strides) for n, x in self.arrays.items()},
            self.ops.detail,
        )
        assert self.ops.context_synchronize(ctx) == 0
        self.ops.destroy(*(("tensor", h) for h in handles.values() if h))
        for name, values in self.results.items():
            self.arrays[name].expect(values, self.tolerance)
        self.memory.free()
