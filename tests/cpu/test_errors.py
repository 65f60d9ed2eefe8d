# SPDX-License-Identifier: Apache-2.0
"""What every function refuses, from the manifest: the code, a message with function, argument, what it got and what it
expected, and not a byte written. And what it must accept: zero extents, nullable arguments, twins."""

import cases
import checks
import kflib
import numpy as np
import pytest
from conftest import BUILD

# The checks do not depend on the activation, but for which inputs its derivative reads: all activations from level 2 on.
FUNCTIONS = [f for f in kflib.manifest()["functions"] if cases.LEVEL > 1 or f["activation"] in ("none", "relu", "leaky_relu")]
PATTERNS = list(dict.fromkeys(f["op"] for f in FUNCTIONS))
EXTENTS = {1: (67,), 2: (5, 13), 3: (2, 3, 11)}
SUCCESS, NULL_POINTER, INVALID_SIZE, INVALID_VALUE, OVERLAP, WORKSPACE = range(6)
GAP = 1024  # larger than any tensor here: what is moved onto one touches no other


@pytest.fixture(scope="module")
def lib():
    return kflib.build("cpu", FUNCTIONS, BUILD / "cpu", ("-O0",))  # refusals take no time, compiling does


@pytest.fixture(params=PATTERNS)
def functions(request):
    return [f for f in FUNCTIONS if f["op"] == request.param]


def tensors_of(f):
    return [a for a in f["arguments"] if "kind" in a]


def item(a):
    return kflib.SIZE[a["dtype"]]


def count(a, sizes):
    return int(np.prod(checks.shape_of(sizes, a["kind"])))


POISON = 0xC5


class Call:
    """A valid call of f in an arena of its own; `set` changes arguments, `refuses` and `accepts` make the call."""

    def __init__(self, lib, f, sizes=None):
        self.lib, self.f, self.sizes = lib, f, sizes or EXTENTS[len(f["sizes"])]
        self.at, self.bytes, end = {}, {}, GAP
        for a in tensors_of(f):
            self.at[a["name"]], self.bytes[a["name"]] = end, count(a, self.sizes) * item(a)
            end += -(-self.bytes[a["name"]] // 64) * 64 + GAP
        self.workspace_bytes = lib.workspace_bytes(f, list(self.sizes))
        self.at[":workspace"], self.bytes[":workspace"] = end, self.workspace_bytes
        end += -(-self.workspace_bytes // 64) * 64 + GAP
        self.at[":state"], self.bytes[":state"] = end, 16
        buffer = np.full(end + 64 + GAP, 0x3C, np.uint8)  # a small positive number in every float type
        skip = -buffer.ctypes.data % 64
        self.memory = buffer[skip:]
        self.base = self.memory.ctypes.data
        self.memory[self.at[":state"]:self.at[":state"] + 16] = 0
        for a in tensors_of(f):
            if a["role"] != "in":
                self.memory[self.at[a["name"]]:self.at[a["name"]] + self.bytes[a["name"]]] = POISON
        self.values = dict(zip(f["sizes"], self.sizes)) | f["scalars"] | {
            "workspace": self.base + self.at[":workspace"] if self.workspace_bytes else None, "workspace_bytes": self.workspace_bytes,
            "p": 0.25, "seed": 1, "offset": 2, "state": self.base + self.at[":state"]}
        for a in tensors_of(f):
            self.values[a["name"]] = self.base + self.at[a["name"]]

    def set(self, **changes):
        self.values |= changes
        return self

    def address(self, name):
        return self.base + self.at[name]

    def _call(self):
        before = self.memory.copy()
        return self.lib.call(self.f, self.values), np.flatnonzero(before != self.memory)

    def refuses(self, code, *words):
        code_got, changed = self._call()
        name, detail = self.f["cpu_name"], self.lib.detail
        assert code_got == code, f"{name} returned {code_got}, expected {code} for {words} ({detail if code_got else 'success'})"
        named, text = detail.split(": ", 1)
        # A _state twin may speak of its brother here: test_message_names_the_twin is about that alone.
        assert named in (name, name.replace("_state_", "_", 1)), f"{name}: the message is {detail!r}"
        missing = [w for w in words if str(w) not in text]
        assert not missing, f"{name}: {missing} not in the message {detail!r}"
        assert "expected" in detail and len(detail) < 255, f"{name}: the message is {detail!r}"
        assert not changed.size, f"{name} refused {words}, and wrote at byte {changed[0]} of {self.at}"

    def accepts(self, what, writes=()):
        """writes: names of the outputs that may change."""
        code, changed = self._call()
        assert code == SUCCESS, f"{self.f['cpu_name']} refused {what}: {code} ({self.lib.detail})"
        allowed = np.zeros(self.memory.size, bool)
        for name in (*writes, ":workspace"):
            allowed[self.at[name]:self.at[name] + self.bytes[name]] = True
        wrong = changed[~allowed[changed]]
        assert not wrong.size, f"{self.f['cpu_name']} with {what} wrote at byte {wrong[0]} of {self.at}"


def outputs(f):
    return [a["name"] for a in tensors_of(f) if a["role"] != "in"]


def test_the_valid_call(lib, functions):
    """Everything below changes one thing of a call that is right."""
    for f in functions:
        call = Call(lib, f)
        call.accepts("a valid call", outputs(f))
        for name in outputs(f):
            span = slice(call.at[name], call.at[name] + call.bytes[name])
            assert (call.memory[span] != POISON).any(), f"{f['cpu_name']} did not write {name}"


def test_negative_sizes(lib, functions):
    for f in functions:
        for size in f["sizes"]:
            for value in (-1, -2**40, -2**63):
                Call(lib, f).set(**{size: value}).refuses(INVALID_SIZE, f"{size} is {value}", "expected 0 or more")
        # Sizes come before pointers, and a negative one before a zero one.
        Call(lib, f).set(**{a["name"]: None for a in tensors_of(f)}, **{f["sizes"][-1]: -3}).refuses(INVALID_SIZE, f["sizes"][-1])
        if len(f["sizes"]) > 1:
            Call(lib, f).set(**{f["sizes"][0]: 0, f["sizes"][-1]: -3}).refuses(INVALID_SIZE, f["sizes"][-1])
            Call(lib, f).set(**{f["sizes"][0]: -3, f["sizes"][-1]: 0}).refuses(INVALID_SIZE, f["sizes"][0])


OVERFLOWS = {1: [(2**62,), (2**63 - 1,)], 2: [(2**32, 2**32), (2**62, 4), (3, 2**62), (2**63 - 1, 2**63 - 1), (2**31, 2**31)],
             3: [(2**22, 2**22, 2**22), (2**62, 1, 4), (2**32, 1, 2**32), (1, 2**62, 2**62), (2**63 - 1, 2, 1)]}


def test_products_that_overflow(lib, functions):
    for f in functions:
        for sizes in OVERFLOWS[len(f["sizes"])]:
            Call(lib, f).set(**dict(zip(f["sizes"], sizes))).refuses(INVALID_SIZE, " is ", "expected a tensor of at most")


def test_null(lib, functions):
    """Nullable exactly where the manifest says so."""
    for f in functions:
        for a in tensors_of(f):
            if a["nullable"]:
                Call(lib, f).set(**{a["name"]: None}).accepts(f"{a['name']} NULL", set(outputs(f)) - {a["name"]})
            else:
                call = Call(lib, f).set(**{a["name"]: None})
                call.refuses(NULL_POINTER, f"{a['name']} is NULL", f"expected a pointer to {count(a, call.sizes)} elements")
        # All that may be NULL together, the workspace too when no sum is asked for.
        Call(lib, f).set(**{a["name"]: None for a in tensors_of(f) if a["nullable"]}, workspace=None, workspace_bytes=0).accepts(
            "everything nullable NULL", [a["name"] for a in tensors_of(f) if a["role"] != "in" and not a["nullable"]])


def test_misaligned_to_the_element(lib, functions):
    for f in functions:
        for a in tensors_of(f):
            if a["unread"]:
                continue
            for shift in {1, item(a) // 2}:
                call = Call(lib, f)
                call.set(**{a["name"]: call.address(a["name"]) + shift})
                call.refuses(INVALID_VALUE, f"{a['name']} is 0x", f"aligned to its {item(a)}-byte elements")


def test_overlap(lib, functions):
    """An output that lies partly on an input, on a row operand, on another output or on an output of another shape."""
    for f in functions:
        tensors = tensors_of(f)
        for o in tensors:
            if o["role"] == "in":
                continue
            for other in tensors:
                if other["name"] == o["name"] or other["unread"]:
                    continue
                words = (o["name"], other["name"], "overlaps", "expected")
                in_place = o["kind"] == other["kind"] and o["kind"] in ("elem", "half") and item(o) == item(other) and other["role"] == "in"
                twins = o["same_as"] == other["name"] or other["same_as"] == o["name"] or (o["same_as"] and o["same_as"] == other["same_as"])
                call = Call(lib, f)
                call.set(**{o["name"]: call.address(other["name"])})
                if in_place:
                    call.accepts(f"{o['name']} in place of {other['name']}", [other["name"], *outputs(f)])
                elif twins:
                    call.accepts(f"{o['name']} the same as {other['name']}", outputs(f))
                else:
                    call.refuses(OVERLAP, *words)
                # One element further or back, and the last element onto the first: never allowed.
                step = max(item(o), item(other))
                for shift in (step, -step, call.bytes[other["name"]] - step, step - call.bytes[o["name"]]):
                    if shift == 0 or (shift < 0 and -shift >= call.bytes[o["name"]]) or shift >= call.bytes[other["name"]]:
                        continue
                    call = Call(lib, f)
                    target = call.address(other["name"]) + shift
                    if target % item(o):
                        continue
                    call.set(**{o["name"]: target}).refuses(OVERLAP, *words)


def test_side_by_side(lib, functions):
    """Tensors that touch do not overlap."""
    for f in functions:
        for order in (1, -1):  # an output behind an input, and before one
            call = Call(lib, f, {1: (64,), 2: (4, 16), 3: (2, 4, 8)}[len(f["sizes"])])  # all of them multiples of 8 bytes
            at = call.base + GAP
            for a in tensors_of(f)[::order]:
                call.set(**{a["name"]: at})
                at += call.bytes[a["name"]]
            assert at % 8 == 0
            assert lib.call(f, call.values) == SUCCESS, f"{f['cpu_name']}: {lib.detail}"


def test_probability(lib, functions):
    for f in functions:
        if not f["dropout"]:
            continue
        for p, text in ((-0.1, "-0.1"), (1.5, "1.5"), (float("nan"), "nan"), (float("inf"), "inf"), (-1e-30, "-1e-30"), (1.0000002, "1")):
            Call(lib, f).set(p=p).refuses(INVALID_VALUE, f"p is {text}", "expected 0 <= p <= 1")
            # Scalars are looked at before sizes are found to be zero, and before pointers.
            Call(lib, f).set(p=p, **{f["sizes"][0]: 0}).refuses(INVALID_VALUE, "p is")
            Call(lib, f).set(p=p, **{a["name"]: None for a in tensors_of(f)}).refuses(INVALID_VALUE, "p is")
        for p in (0.0, 1.0, -0.0):
            Call(lib, f).set(p=p).accepts(f"p = {p}", outputs(f))


def test_state(lib, functions):
    """The {seed, offset} of a _state twin is a pointer as any other."""
    for f in functions:
        if not f["state"]:
            continue
        Call(lib, f).set(state=None).refuses(NULL_POINTER, "state is NULL")
        call = Call(lib, f)
        call.set(state=call.address(":state") + 4).refuses(INVALID_VALUE, "state is 0x", "aligned")
        Call(lib, f).set(state=None, **{s: 0 for s in f["sizes"]}).accepts("a state that nobody reads")


def test_message_names_the_twin(lib, functions):
    for f in functions:
        if f["state"]:
            assert Call(lib, f).set(**{f["sizes"][0]: -1})._call()[0] == INVALID_SIZE
            assert lib.detail.startswith(f["cpu_name"] + ": "), f"{f['cpu_name']}: the message is {lib.detail!r}"


def test_workspace(lib, functions):
    for f in functions:
        if not f["cpu_workspace"]:
            continue
        call = Call(lib, f)
        need = call.workspace_bytes
        assert need > 0
        words = ("workspace", f"{need} bytes", "16-byte aligned")
        call.set(workspace=None).refuses(WORKSPACE, *words)
        Call(lib, f).set(workspace=None, workspace_bytes=0).refuses(WORKSPACE, *words)
        Call(lib, f).set(workspace_bytes=need - 1).refuses(WORKSPACE, f"of {need - 1} bytes", *words)
        call = Call(lib, f)
        for shift in (1, 4, 8):
            call.set(workspace=call.address(":workspace") + shift).refuses(WORKSPACE, *words)
        Call(lib, f).set(workspace_bytes=2**63).accepts("more workspace than needed", outputs(f))
        # Not asked for, not needed.
        sums = [a["name"] for a in tensors_of(f) if a["role"] == "sum"]
        Call(lib, f).set(workspace=None, workspace_bytes=0, **{s: None for s in sums}).accepts("no sum and no workspace", set(outputs(f)) - set(sums))
        for one in sums:
            Call(lib, f).set(workspace=None, **{s: None for s in sums if s != one}).refuses(WORKSPACE, *words)
        # Pointers come before the workspace.
        required = next(a["name"] for a in tensors_of(f) if not a["nullable"])
        Call(lib, f).set(workspace=None, **{required: None}).refuses(NULL_POINTER, required)


def test_workspace_twin(lib, functions):
    """Nonsense sizes ask for nothing; the size does not shrink when a tensor grows."""
    for f in functions:
        if f["cpu_workspace"]:
            sizes = list(EXTENTS[len(f["sizes"])])
            assert lib.workspace_bytes(f, [-1] + sizes[1:]) == 0
            assert lib.workspace_bytes(f, [4096] + sizes[1:]) >= lib.workspace_bytes(f, sizes)


def test_zero_extents(lib, functions):
    """Success without a pointer; what is summed over nothing is zero."""
    for f in functions:
        sizes = EXTENTS[len(f["sizes"])]
        for i, size in enumerate(f["sizes"]):
            empty = tuple(0 if i == j else s for j, s in enumerate(sizes))
            call = Call(lib, f, empty)
            sums = [a for a in tensors_of(f) if a["role"] == "sum" and count(a, empty)]
            call.set(**{a["name"]: None for a in tensors_of(f) if count(a, empty) == 0})
            call.accepts(f"{size} = 0", [a["name"] for a in sums])
            for a in sums:
                span = call.memory[call.at[a["name"]]:call.at[a["name"]] + call.bytes[a["name"]]]
                assert not span.any(), f"{f['cpu_name']}: {a['name']} over {size} = 0 is not zero"
            if not sums:  # nothing to write: no pointer is looked at
                call = Call(lib, f, empty)
                call.set(**{a["name"]: None for a in tensors_of(f)}, workspace=None, workspace_bytes=0).accepts(f"{size} = 0, all NULL")
                call.set(**{a["name"]: 1 for a in tensors_of(f)}).accepts(f"{size} = 0, pointers of no meaning")
        call = Call(lib, f).set(**{s: 0 for s in f["sizes"]}, **{a["name"]: None for a in tensors_of(f)})
        call.set(workspace=None, workspace_bytes=0).accepts("all sizes 0")


def test_codes_have_texts(lib):
    texts = [lib.string(code) for code in range(10)]
    assert texts[0] == "success" and len(set(texts)) == 10 and all(len(t) > 5 or t == "success" for t in texts)
    assert lib.string(10) == lib.string(-1) == "unknown result code"


def test_long_messages_are_cut(lib):
    """Names, pointers and numbers at their longest stay within the buffer."""
    f = max(FUNCTIONS, key=lambda f: len(f["cpu_name"]))
    Call(lib, f).set(**{f["sizes"][-1]: -2**63}).refuses(INVALID_SIZE, str(-2**63))
