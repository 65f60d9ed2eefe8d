# SPDX-License-Identifier: Apache-2.0
"""Calls of optimizers, in the memory of a test, and what they leave there by the oracle."""

import ctypes
import functools

import kflib
import numpy as np
from kfgen import families
from kfgen.entries import expand
from kfgen.families.optimizer import once
from lists import table
from storage import EPS, STORAGE, from_float, spec, to_float, ulp

# Empty tensors at every slot, single elements, odd sizes, parts of 128 and chunks of 8,192.
LENGTHS = ((), (0,), (1,), (0, 5, 0), (3, 0, 257, 8192, 0), (8193, 1, 16385, 64), (2, 3, 5) * 67)
NULLABLE = ("master", "grad_scale", "found_inf")


@functools.cache
def functions():
    """The functions of the family."""
    return [f for f in kflib.manifest()["functions"] if f["family"] == "optimizer"]


def of(op, *dtypes):
    [f] = [f for f in functions() if (f["op"], *f["dtypes"]) == (op, *dtypes)]
    return f


@functools.cache
def kernel_of(pattern, dtypes):
    found = expand.kernels(spec().ops[pattern])
    return next(k for k in found if tuple(k.dtypes) == dtypes)


def reference_of(f, scalars):
    op = spec().ops[f["op"]]
    reference = families.of(op).reference(op, op.activations[0])
    reference.scalars = scalars
    return reference


class Call:
    """One call: its lists, one tensor after another behind guard bytes, and its numbers.

    Args:
        drop: arguments that are NULL.
        changed: scalars and numbers in place of those of the tests.
    """

    def __init__(self, f, lengths, seed, shift=0, drop=(), changed=None):
        rng = np.random.default_rng(seed)
        self.f, self.lengths, self.drop, self.room = f, lengths, drop, 64
        self.tensors = [a for a in f["arguments"] if "kind" in a]
        self.lists = [a for a in self.tensors if a["list"]]
        changed = changed or {}
        self.scalars = f["scalars"] | {n: v for n, v in changed.items() if n in f["scalars"]}
        self.reference = reference_of(f, self.scalars)
        drawn = self.reference.inputs(rng)
        self.numbers = {
            a["name"]: changed.get(a["name"], float(drawn[a["name"]][0]))
            for a in self.tensors
            if not a["list"]
        }
        self.given, self.at = {}, {}
        for k, a in enumerate(self.tensors):
            self.given[a["name"]], self.at[a["name"]] = [], []
            for i, n in enumerate(lengths if a["list"] else (1,)):
                x = rng.standard_normal(n) * 3 if a["list"] else np.full(n, self.numbers[a["name"]])
                values = from_float(np.abs(x) + 0.25 if a["positive"] else x, a["dtype"])
                step = values.itemsize * (shift and (shift + i + k) % 4)
                self._place(a["name"], values, step if a["list"] else 0)
        self.image = np.full(-(-self.room // 256) * 256 + 256, 0xFF, np.uint8)
        for name, values in self.given.items():
            for x, at in zip(values, self.at[name]):
                self.image[at : at + x.nbytes] = x.view(np.uint8)

    def _place(self, name, values, step):
        at = -(-self.room // 16) * 16 + step
        self.at[name].append(at)
        self.given[name].append(values)
        self.room = at + values.nbytes + 8

    def arguments(self, base):
        tables = {
            a["name"]: table(
                base + at if n else None for at, n in zip(self.at[a["name"]], self.lengths)
            )
            for a in self.lists
        }
        self.held = [*tables.values(), table(self.lengths, ctypes.c_int64)]
        found = {name: ctypes.addressof(x) for name, x in tables.items()}
        found |= {n: base + self.at[n][0] for n in self.numbers}
        found |= {"lengths": ctypes.addressof(self.held[-1]), "count": len(self.lengths)}
        return found | self.scalars | dict.fromkeys(self.drop)

    def values(self):
        """The values in float64 that a call reads: the tensors of each list joined, numbers."""
        found = {
            a["name"]: to_float(
                np.concatenate([*self.given[a["name"]], []]).astype(STORAGE[a["dtype"]]), a["dtype"]
            )
            for a in self.lists
        }
        master = found.pop("master", None)
        if master is not None and "master" not in self.drop:
            found[self.reference.op.own["master"]] = master
        absent = {"grad_scale": 1.0, "found_inf": 0.0}
        return found, self.numbers | {n: v for n, v in absent.items() if n in self.drop}

    def expected(self):
        """Returns {list: (value, bound of its error before it is stored)} of the joined tensors."""
        values, numbers = self.values()
        numbers_ = {name: np.full(1, v) for name, v in numbers.items()}
        want = self.reference.values(values | numbers_, {})
        kernel = self.reference.kernel(False)
        compute = "f64" if self.f["dtypes"][0] == "f64" else "f32"
        env = values | once.evaluate(kernel.once_graph, kernel.once, self.scalars | numbers)
        bounds = self.reference.bound(kernel).evaluate(env, EPS[compute], 0.0)
        sizes = {s.next_name: b[0] for s, b in zip(kernel.updated, bounds)}
        found = {
            name.removesuffix("_out"): (value, 4 * EPS[compute] * sizes[name])
            for name, value in want.items()
        }
        of = self.reference.op.own["master"]
        return found | ({"master": found[of]} if of and "master" not in self.drop else {})

    def check(self, back):
        """Compares the memory after the call with the oracle."""
        whole, ends = self.image.copy(), np.cumsum(self.lengths)
        skipped = self.numbers.get("found_inf") and "found_inf" not in self.drop
        for name, (value, bound) in {} if skipped else self.expected().items():
            [dtype] = {a["dtype"] for a in self.lists if a["name"] == name}
            spacing = ulp(value, dtype) if dtype in ("f16", "bf16") else 0.0
            most = bound + spacing + 1e-37
            for i, (n, end) in enumerate(zip(self.lengths, ends)):
                at, size = self.at[name][i], self.given[name][i].nbytes
                got = to_float(back[at : at + size].view(STORAGE[dtype]), dtype)
                near = np.abs(got - value[end - n : end]) <= most[end - n : end]
                assert near.all(), (self.f["name"], name, i, np.flatnonzero(~near)[:4])
                whole[at : at + size] = back[at : at + size]
        assert (back == whole).all(), "bytes outside of the tensors that are updated changed"


def run(lib, memory, call):
    code, back = memory.run(call.image, lambda base: lib.call(call.f, call.arguments(base)))
    assert code == 0, lib.detail
    call.check(back)


CASES = [
    # (NULL arguments, scalars and numbers)
    ((), {}),
    (NULLABLE, {}),
    (("master",), {"maximize": 1, "nesterov": 0, "step": 1}),
    ((), {"found_inf": 1.0}),
]


def numbers(lib, memory, functions_):
    """Runs every function on every shape, with some NULL arguments and scalars."""
    for f in functions_:
        own = {a["name"] for a in f["arguments"]}
        for k, lengths in enumerate(LENGTHS):
            drop, changed = CASES[k % len(CASES)]
            changed = {n: v for n, v in changed.items() if n in own}
            drop = [n for n in drop if n in own]
            run(lib, memory, Call(f, lengths, k, k % 3, drop, changed))
