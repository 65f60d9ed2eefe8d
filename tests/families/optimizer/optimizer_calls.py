# SPDX-License-Identifier: Apache-2.0
"""Calls of optimizers, in the memory of a test, and what they leave there by the oracle."""

import ctypes
import functools

import kflib
import numpy as np
from element_checks import philox_words
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

    def stored(self, back, name, i):
        """Returns tensor i of a list in float64 as it is after the call."""
        at, given = self.at[name][i], self.given[name][i]
        return to_float(back[at : at + given.nbytes].view(given.dtype), self.dtype_of(name))

    def dtype_of(self, name):
        [dtype] = {a["dtype"] for a in self.lists if a["name"] == name}
        return dtype

    def expected_by_tensor(self, back):
        """Returns the same as `expected`, with sums over each tensor. Lists that depend on the sums
        follow from the next values of the others as these are stored.
        """
        kernel = self.reference.kernel(False)
        eps = EPS["f64" if self.f["dtypes"][0] == "f64" else "f32"]
        of, found = self.reference.op.own["master"], {}
        values, numbers = self.values()
        kept = [n for n in self.reference.op.updates if n not in kernel.applied]
        for i, (n, end) in enumerate(zip(self.lengths, np.cumsum(self.lengths))):
            own = {name: x[end - n : end] for name, x in values.items()}
            own |= {name: np.full(1, v) for name, v in numbers.items()}
            stored = {f"{name}_out": self.stored(back, name, i) for name in kept}
            want = self.reference.values(own | stored, {}) if n else {}
            env = own | self.reference.passes(kernel, own | numbers) if n else {}
            bounds = self.reference.bound(kernel).evaluate(env, eps, 0.0) if n else []
            sizes = {s.next_name: b[0] for s, b in zip(kernel.updated, bounds)}
            for name, x in want.items():
                name = name.removesuffix("_out")
                bound = 4 * eps * sizes[f"{name}_out"]
                if name in kernel.applied:  # 32 elements are added up in float32
                    bound += 32 * eps * np.abs(x - own[name])
                found.setdefault(name, []).append((x, bound))
        joined = {name: [np.concatenate(x) for x in zip(*of)] for name, of in found.items()}
        return joined | ({"master": joined[of]} if joined and "master" not in self.drop else {})

    def check(self, back):
        """Compares the memory after the call with the oracle."""
        whole, ends = self.image.copy(), np.cumsum(self.lengths)
        skipped = self.numbers.get("found_inf") and "found_inf" not in self.drop
        by_tensor = self.reference.op.own["tensor_sums"]
        found = {} if skipped else self.expected_by_tensor(back) if by_tensor else self.expected()
        for name, (value, bound) in found.items():
            dtype = self.dtype_of(name)
            spacing = ulp(value, dtype) if dtype in ("f16", "bf16") else 0.0
            most = bound + spacing + 1e-37
            for i, (n, end) in enumerate(zip(self.lengths, ends)):
                at, size = self.at[name][i], self.given[name][i].nbytes
                got = to_float(back[at : at + size].view(STORAGE[dtype]), dtype)
                near = np.abs(got - value[end - n : end]) <= most[end - n : end]
                assert near.all(), (self.f["name"], name, i, np.flatnonzero(~near)[:4])
                whole[at : at + size] = back[at : at + size]
        assert (back == whole).all(), "bytes outside of the tensors that are updated changed"


def called(lib, memory, call):
    """Runs a call, with a workspace behind its tensors if it has one. Returns the tensors' memory
    after it.
    """
    image, room = call.image, lib.workspace_bytes(call.f, ())

    def arguments(base):
        space = {"workspace": base + call.image.size, "workspace_bytes": room}
        return call.arguments(base) | (space if room else {})

    if room:
        image = np.concatenate([image, np.full(room, 0xFF, np.uint8)])
    code, back = memory.run(image, lambda base: lib.call(call.f, arguments(base)))
    assert code == 0, lib.detail
    return back[: call.image.size]


def run(lib, memory, call):
    call.check(called(lib, memory, call))


def run_sum(lib, memory, f, lengths, seed, bad=None):
    """Runs a sum over lists. bad: a value that one element has."""
    call = Call(f, lengths, seed, seed % 3)
    if bad is not None:
        i = max(range(len(lengths)), key=lambda i: lengths[i])
        call.given["x"][i][-1:] = from_float(np.full(1, bad), f["dtypes"][0])
        at = call.at["x"][i]
        call.image[at : at + call.given["x"][i].nbytes] = call.given["x"][i].view(np.uint8)
    back = called(lib, memory, call)
    values, numbers_ = call.values()
    [(name, want)] = call.reference.values(values | numbers_, {}).items()
    [number] = numbers_
    at, dtype = call.at[number][0], next(a["dtype"] for a in call.tensors if not a["list"])
    size = call.given[number][0].nbytes
    got = back[at : at + size].view(STORAGE[dtype])[0]
    assert np.allclose(got, want, rtol=1e-6, atol=0, equal_nan=True), (f["name"], lengths, got)
    back[at : at + size] = call.image[at : at + size]
    assert (back == call.image).all()


def sums(lib, memory, functions_):
    """Runs every sum on every shape, with infinities and NaN at the end of the longest tensor."""
    for f in functions_:
        for k, lengths in enumerate(LENGTHS):
            for bad in (None, np.inf, np.nan) if any(lengths) else (None,):
                run_sum(lib, memory, f, lengths, k, bad)


def is_sum(f):
    return not any(a["role"] == "inout" for a in f["arguments"] if a.get("list"))


CASES = [
    # (NULL arguments, scalars and numbers)
    ((), {}),
    (NULLABLE, {}),
    (("master",), {"maximize": 1, "nesterov": 0, "step": 1}),
    ((), {"found_inf": 1.0}),
]


def numbers(lib, memory, functions_):
    """Runs every function on every shape, with some NULL arguments and scalars."""
    for f in [f for f in functions_ if not is_sum(f)]:
        own = {a["name"] for a in f["arguments"]}
        for k, lengths in enumerate(LENGTHS):
            drop, changed = CASES[k % len(CASES)]
            changed = {n: v for n, v in changed.items() if n in own}
            drop = [n for n in drop if n in own]
            run(lib, memory, Call(f, lengths, k, k % 3, drop, changed))


def rounded_at_random(call, back):
    """Checks the bits of a call of adamw_stochastic with betas of 1/2 and no learning rate: float32
    has the moments exactly, so the random words decide alone.
    """
    grad, m, v = (
        [to_float(x, "bf16") for x in call.given[name]]
        for name in ("grad", "exp_avg", "exp_avg_sq")
    )
    offset = call.scalars["offset"] + int(call.scalars.get("step") or call.numbers["step"])
    at = [i for i, n in enumerate(call.lengths) if n]
    for k, name, exact in (
        (1, "exp_avg", [(a + g) / 2 for a, g in zip(m, grad)]),
        (2, "exp_avg_sq", [(a + g * g) / 2 for a, g in zip(v, grad)]),
    ):
        for number, i in enumerate(at):
            n = call.lengths[i]
            groups = np.arange((n + 7) // 8, dtype=np.uint64) + np.uint64(
                (k << 60) + (number << 36)
            )
            words = philox_words(call.scalars["seed"], offset, groups).reshape(-1)[:n]
            bits = exact[i].astype(np.float32)
            assert (bits == exact[i]).all()
            want = (bits.view(np.uint32) + words.astype(np.uint32)) >> np.uint32(16)
            place = call.at[name][i]
            got = back[place : place + 2 * n].view(np.uint16)
            assert (got == want).all(), (name, i)


def run_at_random(lib, memory, f):
    """Runs a stochastic function of bf16 alone on values that have few bits."""
    changed = {"lr": 0.0, "weight_decay": 0.0, "beta1": 0.5, "beta2": 0.5, "grad_scale": 1.0}
    changed |= {"seed": 2**40 + 7, "offset": 5, "step": 3}
    call = Call(f, (0, 5, 8193, 0, 300), 1, 1, (), changed)
    for name in ("grad", "exp_avg", "exp_avg_sq"):
        for x, at in zip(call.given[name], call.at[name]):
            x[...] = from_float(1 + np.abs(to_float(x, "bf16")) % 1, "bf16")
            call.image[at : at + x.nbytes] = x.view(np.uint8)
    code, back = memory.run(call.image, lambda base: lib.call(f, call.arguments(base)))
    assert code == 0, lib.detail
    rounded_at_random(call, back)
