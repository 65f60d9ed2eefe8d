# SPDX-License-Identifier: Apache-2.0
"""The two evaluators of size rules, include/kf/runtime/layout.h and _sizes.py, give the same sizes,
shapes and errors: for random rules, and for every op of kf."""

import ctypes
import random
import re
import subprocess

import kflib
import pytest
import size_rules
from kfgen.interfaces import packed
from kfgen.model import shapes as data
from size_rules import Argument, evaluator

layout, strides = size_rules.module("_layout"), size_rules.module("_strides")
MOST = 2**58  # KFI_LAYOUT_MOST
SOURCE = """#include "kf/runtime/layout.h"
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif
int find(const kfi_layout_rules *, int, const kfi_layout_tensor *const *, const int64_t *const *,
         const int *, int64_t, const int64_t *, kfi_layout *, kfi_layout_error *);
int shape(const kfi_layout_rules *, const kfi_layout *, const kfi_layout_tensor *, int64_t *);
int evaluate(const int32_t *, const int64_t *, int64_t *);
int strides(const kfi_layout_rules *, const kfi_layout *, const kfi_layout_tensor *,
            const int64_t *, const int64_t *, int, int64_t *);
int divisor(const kfi_layout_rules *, const kfi_layout *);
int zero(const kfi_layout_rules *, const kfi_layout *);
void integers(const kfi_layout_rules *, kfi_layout *, const int64_t *, int);
size_t bytes(int);
int find(const kfi_layout_rules *r, int tensors, const kfi_layout_tensor *const *t,
         const int64_t *const *shapes, const int *ranks, int64_t axis, const int64_t *arguments,
         kfi_layout *l, kfi_layout_error *e)
{
    return kfi_layout_find(r, tensors, t, shapes, ranks, axis, arguments, l, e);
}
int shape(const kfi_layout_rules *r, const kfi_layout *l, const kfi_layout_tensor *t, int64_t *out)
{
    return kfi_layout_shape(r, l, t, out);
}
int evaluate(const int32_t *code, const int64_t *values, int64_t *out)
{
    return kfi_layout_evaluate(code, values, out);
}
size_t bytes(int which)
{
    const size_t of[] = {sizeof(kfi_layout_extent), sizeof(kfi_layout_tensor),
                         sizeof(kfi_layout_rules), sizeof(kfi_layout), sizeof(kfi_layout_error)};
    return of[which];
}
int divisor(const kfi_layout_rules *r, const kfi_layout *l) { return kfi_layout_divisor(r, l); }
int zero(const kfi_layout_rules *r, const kfi_layout *l) { return kfi_layout_zero(r, l); }
void integers(const kfi_layout_rules *r, kfi_layout *l, const int64_t *integers, int count)
{
    kfi_layout_integers(r, l, integers, count);
}
int strides(const kfi_layout_rules *r, const kfi_layout *l, const kfi_layout_tensor *t,
            const int64_t *shape, const int64_t *strides, int rank, int64_t *fields)
{
    int some = 0;
    return kfi_layout_is_dense(shape, strides, 0, rank) ||
           kfi_layout_strides(r, l, t, shape, strides, 0, fields, &some);
}
#ifdef __cplusplus
}
#endif
"""


class Found(ctypes.Structure):
    """kfi_layout."""

    _fields_ = [
        ("dim", ctypes.c_int64 * layout.DIMS),
        ("n", ctypes.c_int64 * layout.VALUES),
        ("begin", ctypes.c_int32 * layout.SIZES),
        ("end", ctypes.c_int32 * layout.SIZES),
        ("dims", ctypes.c_int32),
        ("axis", ctypes.c_int32),
    ]


class Error(ctypes.Structure):
    """kfi_layout_error."""

    _fields_ = [(n, ctypes.c_int32) for n in ("why", "tensor", "dim", "wanted", "more")]


RANK, AXIS, MULTIPLE, SMALL = range(1, 5)  # KFI_LAYOUT_*


def numbers(values):
    return (ctypes.c_int64 * max(len(values), 1))(*values)


@pytest.fixture(scope="module", params=["c11", "c++17"])
def c(request, tmp_path_factory):
    """The C evaluator, compiled in each language; undefined behaviour stops it."""
    folder = tmp_path_factory.mktemp("layout")
    is_c = request.param == "c11"
    path = folder / ("layout.c" if is_c else "layout.cpp")
    path.write_text(SOURCE)
    flags = f"-std={request.param} -O1 -Wall -Wextra -Werror -fPIC -shared".split()
    flags += ["-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"]
    compiler = "gcc" if is_c else "g++"
    subprocess.run(
        [compiler, *flags, f"-I{kflib.ROOT / 'include'}", path, "-o", folder / "layout.so"],
        check=True,
    )
    return ctypes.CDLL(str(folder / "layout.so"))


class Both:
    """An op's rules and tensors for both evaluators."""

    def __init__(self, sizes, axis, tensors, shaping, integers=(), defaults=None, beside=None):
        self.rules = evaluator.Rules(sizes, axis, defaults)
        self.tensors = {
            name: Argument(name, extents, evaluator.lines(extents, list(sizes)))
            for name, extents in tensors.items()
        }
        self.shaping, self.integers, codes = list(shaping), integers, []
        self.of = {
            name: layout.tensor(extents, list(sizes), integers, codes)
            for name, extents in tensors.items()
        }
        self.beside = beside or {}
        self.struct = layout.rules(self.rules, codes, integers, self.beside)

    def in_python(self, shapes, axis, groups, integers):
        """Returns (layout, None) or (None, error)."""
        given = {"groups": groups} | dict(zip(self.integers, integers))
        try:
            tensors = [self.tensors[name] for name in self.shaping]
            return evaluator.Layout(self.rules, tensors, shapes, axis, given), None
        except evaluator.ShapeError as e:
            return None, str(e)

    def in_c(self, c, shapes, axis, groups, integers):
        """Returns (layout, error)."""
        found, error, count = Found(), Error(), len(self.shaping)
        tensors = (ctypes.POINTER(layout.TensorOf) * count)(
            *[ctypes.pointer(self.of[name]) for name in self.shaping]
        )
        pointers = (ctypes.POINTER(ctypes.c_int64) * count)(
            *[ctypes.cast(numbers(s), ctypes.POINTER(ctypes.c_int64)) for s in shapes]
        )
        ranks = (ctypes.c_int * count)(*map(len, shapes))
        default = axis if self.rules.has_axis or self.rules.axis is None else self.rules.axis
        done = c.find(
            *(ctypes.byref(self.struct), count, tensors, pointers, ranks),
            *(ctypes.c_int64(default), numbers([groups] * layout.SIZES)),
            *(ctypes.byref(found), ctypes.byref(error)),
        )
        c.integers(
            *(ctypes.byref(self.struct), ctypes.byref(found), numbers(integers), len(integers))
        )
        return (found, None) if done else (None, error)

    def shape_in_c(self, c, found, name):
        out = numbers([0] * layout.DIMS)
        n = c.shape(
            ctypes.byref(self.struct), ctypes.byref(found), ctypes.byref(self.of[name]), out
        )
        return tuple(out[:n]) if n >= 0 else None

    def shape_in_python(self, found, name):
        try:
            return found.of(self.tensors[name])
        except evaluator.ShapeError:
            return None

    def compare(self, c, shapes, axis=-1, groups=1, integers=()):
        """Compares sizes, shapes and errors of both; returns the shapes, or None after an error."""
        want, text = self.in_python(shapes, axis, groups, integers)
        got, error = self.in_c(c, shapes, axis, groups, integers)
        where = (self.rules.sizes, self.rules.axis, self.tensors, shapes, axis, groups, integers)
        assert (want is None) == (got is None), (where, text)
        if want is None:
            self._compare_errors(text, error, shapes, where)
            return None
        given = self.rules.arguments
        wanted = [
            n if n <= MOST or size in given else -1 for size, n in zip(self.rules.sizes, want.sizes)
        ]
        assert got.n[: len(wanted)] == wanted, where
        assert tuple(got.dim[: got.dims]) == want.shape, where
        if -1 in wanted:
            return None
        bad = [
            size
            for size, other in self.rules.divisors.items()
            if want.values[size] < 1 or want.values[other] % want.values[size]
        ]
        sizes = list(self.rules.sizes)
        at = c.divisor(ctypes.byref(self.struct), ctypes.byref(got))
        assert at == (sizes.index(bad[0]) if bad else -1), where
        bad = [s for s, other in self.beside.items() if want.values[s] == 0 != want.values[other]]
        at = c.zero(ctypes.byref(self.struct), ctypes.byref(got))
        assert at == (sizes.index(bad[0]) if bad else -1), where
        made = {}
        for name in self.tensors:
            made[name] = self.shape_in_python(want, name)
            large = not all(fits(extent, want.values) for extent in self.tensors[name].extents)
            found = self.shape_in_c(c, got, name)
            assert found == (None if large else made[name]), (where, name)
        return made

    def _compare_errors(self, text, error, shapes, where):
        """Compares the tensor and the meaning of the error."""
        name = self.shaping[error.tensor]
        assert text.startswith(f"{name} has the shape {tuple(shapes[error.tensor])}, "), where
        expected = text.partition("expected ")[2].partition(" beside ")[0]
        more = "at least " if error.more else ""
        plain = {
            RANK: f"{more}{error.wanted} dimensions",
            AXIS: "a dimension -?[0-9]+, the axis",
            MULTIPLE: f"an even last dimension.*|a dimension {error.dim} that is a multiple of "
            f"{error.wanted}( plus [0-9]+)?",
            SMALL: f"a dimension {error.dim} of at least {error.wanted}",
        }[error.why]
        assert re.fullmatch(plain, expected), (where, text, plain)


def test_structs(c):
    """Python's structs and limits are those of the headers."""
    structs = layout.ExtentOf, layout.TensorOf, layout.RulesOf, Found, Error
    c.bytes.restype = ctypes.c_size_t
    assert [c.bytes(i) for i in range(len(structs))] == [ctypes.sizeof(s) for s in structs]
    text = "".join(header.read_text() for header in layout.HEADERS)
    known = dict(re.findall(r"#define KFI_LAYOUT_(\w+) (\d+)\b", text))
    wanted = {"SIZES": data.SIZES, "EXTENTS": data.EXTENTS, "DEPTH": data.DEPTH}
    assert {n: int(known[n]) for n in (*wanted, "DIMS")} == wanted | {"DIMS": layout.DIMS}
    codes = {n: int(v) for n, v in re.findall(r"KFI_LAYOUT_(\w+) = (-\d)", text)}
    words = {"+": "PLUS", "-": "MINUS", "*": "TIMES", "/": "OVER", "number": "NUMBER", "end": "END"}
    counts = {"before axis": "BEFORE_AXIS", "rest": "REST", None: "ARGUMENT"}
    assert codes == {words[sign]: code for sign, code in data.CODES.items()} | {
        counts[count]: code for count, code in layout.COUNTS.items()
    }


# ---- expressions


def expression(rng, names, depth=3):
    """Draws an extent."""
    if not depth or rng.random() < 0.25:
        return rng.choice(names) if rng.random() < 0.7 else rng.choice((0, 1, 2, 3, 7, 2**31 - 1))
    operator = rng.choice("+-*/")
    return [operator, expression(rng, names, depth - 1), expression(rng, names, depth - 1)]


def fits(extent, names):
    """True if all intermediate values are int64_t and no divisor is 0."""
    if isinstance(extent, list):
        _, left, right = extent
        if not fits(left, names) or not fits(right, names):
            return False
        try:
            found = evaluator.value(extent, names)
        except ZeroDivisionError:
            return False
        return -(2**63) <= found < 2**63
    return True


def test_expressions(c):
    """Values of any sign and size: C rounds quotients down as Python does, and sees overflow."""
    rng, names, outcomes = random.Random(1), ("a", "b", "n"), {True: 0, False: 0}
    edges = (0, 1, -1, 2, -2, 3, -7, 2**31, -(2**31), 2**62, -(2**62), 2**63 - 1, -(2**63))
    for _ in range(4000):
        extent = expression(rng, names)
        values = {
            n: rng.choice(edges) if rng.random() < 0.5 else rng.randint(-50, 50) for n in names
        }
        assert data.parse(data.text(extent)) == extent
        out = ctypes.c_int64()
        code = data.code(extent, names)
        done = c.evaluate(
            (ctypes.c_int32 * len(code))(*code), numbers(list(values.values())), ctypes.byref(out)
        )
        ok = fits(extent, values)
        assert bool(done) == ok, (extent, values)
        assert not ok or out.value == evaluator.value(extent, values), (extent, values)
        outcomes[ok] += 1
    assert min(outcomes.values()) > 200, outcomes


def test_quotients_round_down(c):
    extent = data.parse("(width + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1")
    names = ("width", "padding", "dilation", "kernel", "stride")
    for values, want in (((5, 1, 1, 3, 2), 3), ((2, 0, 3, 4, 4), -1), ((0, 0, 1, 2, 3), 0)):
        assert evaluator.value(extent, dict(zip(names, values))) == want
        out, code = ctypes.c_int64(), data.code(extent, names)
        assert c.evaluate((ctypes.c_int32 * len(code))(*code), numbers(values), ctypes.byref(out))
        assert out.value == want


@pytest.mark.parametrize(
    "text", ["2 ** n", "n // 2", "f(n)", "1.5 * n", "n if n else 2", "-n", f"{2**31} * n", "True"]
)
def test_no_extent(text):
    with pytest.raises(ValueError, match="is no extent"):
        data.parse(text)


# ---- rules


def some_rules(rng):
    """Draws an op: sizes with rules, tensors, and those that determine the sizes."""
    names = ["a", "b", "c", "d"][: rng.randint(1, 4)]
    sizes, axis = dict.fromkeys(names, data.ONE), None
    with_axis = len(names) > 1 and rng.random() < 0.4
    if with_axis:
        axis = rng.choice((-1, 0, 1))
        sizes |= {names[0]: data.BEFORE_AXIS, names[-1]: rng.choice((data.REST, data.ONE))}
    elif rng.random() < 0.7:
        sizes[names[0]] = data.REST
    if rng.random() < 0.3:
        sizes["length"] = data.NONE
    if rng.random() < 0.3:
        sizes["groups"] = data.argument("groups", divides=names[-1])
    whole = [
        ["+", ["*", rng.randint(1, 3), n], rng.randint(0, 2)]
        if sizes[n] == data.ONE and rng.random() < 0.3
        else n
        for n in names
    ]
    tensors, shaping = {"x": whole}, ["x"]
    if not with_axis and len(names) > 1 and rng.random() < 0.5:  # the sizes of two tensors
        cut = rng.randint(1, len(names) - 1)
        tensors = {"x": whole[:cut], "w": [*whole[cut:], names[0]]}
        shaping = ["x", "w"]
    values = [*sizes, "kernel", "stride"]
    for name in ("out", "more"):
        tensors[name] = [
            n if rng.random() < 0.6 else expression(rng, values, 2) for n in rng.sample(names, 1)
        ] + rng.sample(list(sizes), 1)
    tensors["conv"] = [data.parse("(a - 2 * (kernel - 1) - 1) / stride + 1")]
    defaults = {"stride": rng.randint(1, 3)} if rng.random() < 0.5 else None
    beside = {names[1]: names[0]} if len(names) > 1 and rng.random() < 0.5 else None
    return Both(sizes, axis, tensors, shaping, ("kernel", "stride"), defaults, beside)


def test_random_rules(c):
    rng, found, errors = random.Random(2), 0, 0
    for _ in range(1500):
        both = some_rules(rng)
        for _ in range(4):
            shapes = [
                tuple(rng.choice((0, 1, 2, 3, 4, 6, 12, 2**40)) for _ in range(rng.randint(0, 5)))
                for _ in both.shaping
            ]
            integers = (rng.randint(-1, 4), rng.randint(-1, 3))
            made = both.compare(c, shapes, rng.randint(-3, 3), rng.randint(-1, 4), integers)
            found, errors = found + (made is not None), errors + (made is None)
    assert min(found, errors) > 1000, (found, errors)


@pytest.fixture(scope="module")
def ops():
    """One function of each op and direction whose sizes follow from shapes."""
    found = {}
    for f in kflib.of_tensors():
        if packed.axes(f):
            found.setdefault((f["op"], f["bwd"]), f)
    return found


def test_every_op(c, ops):
    """Random shapes of the tensors that determine the sizes, mostly valid."""
    rng, good = random.Random(3), 0
    for f in ops.values():
        axes = packed.axes(f)
        tensors = {a["name"]: a["extents"] for a in f["arguments"] if "kind" in a}
        shaping = axes["shaped_by"] or [size_rules.template(f)["name"]]
        both = Both(axes["sizes"], axes["axis"], tensors, shaping, beside=packed.beside(f))
        for _ in range(6):
            ranks = [len(tensors[name]) + rng.choice((0, 0, 0, 1, 2, -1)) for name in shaping]
            shapes = [
                tuple(rng.choice((0, 1, 2, 4, 6)) for _ in range(max(rank, 0))) for rank in ranks
            ]
            good += both.compare(c, shapes, rng.randint(-2, 2), rng.randint(1, 3)) is not None
    assert good > len(ops)


def test_convolutions(c):
    """Computed sizes and options of a shape struct, against PyTorch's formula; 0 is the default."""
    out = "(length + pad_left + pad_right - dilation * (kernel - 1) - 1) / stride + 1"
    tensors = {"x": ["batch", "length", "channels"], "out": ["batch", data.parse(out), "filters"]}
    tensors["weight"] = ["filters", "kernel", data.parse("channels / groups")]
    sizes = dict.fromkeys(("batch", "length", "channels", "filters", "kernel"), data.ONE)
    options = ("stride", "pad_left", "pad_right", "dilation", "groups")
    defaults = {"stride": 1, "dilation": 1, "groups": 1}
    both = Both(sizes, None, tensors, ["x", "weight"], options, defaults)
    rng, there, empty = random.Random(5), 0, 0
    for _ in range(800):
        x = tuple(rng.randint(0, 12) for _ in range(3))
        weight = tuple(rng.randint(0, 5) for _ in range(3))
        given = tuple(rng.randint(0, 4) for _ in options)
        made = both.compare(c, [x, weight], integers=given)
        stride, left, right, dilation, groups = (
            n or defaults.get(name, 0) for name, n in zip(options, given)
        )
        length = (x[1] + left + right - dilation * (weight[1] - 1) - 1) // stride + 1
        assert made["out"] == ((x[0], length, weight[0]) if length >= 0 else None), (x, weight)
        assert made["weight"] == (*weight[:2], x[2] // groups)
        there, empty = there + (length >= 0), empty + (length < 0)
    assert min(there, empty) > 50, (there, empty)


def strides_of(rng, shape):
    """Draws strides: contiguous, with gaps, of other orders, or 0."""
    found, step = [], 1
    for n in reversed(shape):
        found.append(step if rng.random() < 0.9 else rng.choice((0, 1, 2, step + 1)))
        step *= max(n, 1)
        step += rng.choice((0, 0, 0, 1, 8))
    return found[::-1]


def test_strides(c, ops):
    """Fields of the strides struct, or that a tensor must be copied."""
    rng, known, copied = random.Random(4), 0, 0
    for f in (f for f in ops.values() if not packed.axes(f)["shaped_by"]):
        axes, of = packed.axes(f), size_rules.template(f)
        if not of["strides"]:
            continue
        both = Both(axes["sizes"], axes["axis"], {of["name"]: of["extents"]}, [of["name"]])
        levels = both.of[of["name"]].levels = len(of["strides"])
        for _ in range(20):
            shape = tuple(rng.choice((1, 2, 3, 4)) for _ in range(len(of["extents"]) + 1))
            if of["kind"] == "half":
                shape = (*shape[:-1], 2)
            axis = rng.randrange(len(shape))
            steps = strides_of(rng, shape)
            layouts = both.in_python([shape], axis, 1, ()), both.in_c(c, [shape], axis, 1, ())
            assert not any(error for _, error in layouts), (f["name"], shape, layouts)
            python, found = layouts[0][0], layouts[1][0]
            want = strides.of(size_rules.argument(f, of), python, shape, steps)
            fields, given = numbers([0] * levels), (numbers(shape), numbers(steps))
            structs = [ctypes.byref(s) for s in (both.struct, found, both.of[of["name"]])]
            done = c.strides(*structs, *given, len(shape), fields)
            where = (f["name"], shape, steps, axis)
            assert bool(done) == (want is not None), where
            assert not done or tuple(fields)[::-1] == want, where
            known, copied = known + bool(done), copied + (not done)
    assert min(known, copied) > 50, (known, copied)


def test_offsets(c):
    """Sequences of any length in one tensor: their number follows from the offsets."""
    sizes = {"batch": data.ONE, "tokens": data.ONE, "dim": data.ONE}
    tensors = {"x": ["tokens", "dim"], "offset": [data.parse("batch + 1")], "lse": ["batch"]}
    both = Both(sizes, None, tensors, ["x", "offset"])
    assert both.compare(c, [(7, 4), (3,)])["lse"] == (2,)
    assert both.compare(c, [(7, 4), (1,)])["lse"] == (0,)
    assert both.compare(c, [(7, 4), (0,)]) is None
    assert (
        "offset has the shape (0,), expected a dimension 0 of at least 1"
        in both.in_python([(7, 4), (0,)], -1, 1, ())[1]
    )


def test_products_that_overflow(c):
    both = Both({"n": data.REST}, None, {"x": ["n"], "out": ["n"]}, ["x"])
    for shape, fits in (((2**29, 2**29), True), ((2**29, 2**30), False), ((2**40, 2**40, 0), True)):
        found, _ = both.in_c(c, [shape], -1, 1, ())
        assert (found.n[0] >= 0) is fits, shape
