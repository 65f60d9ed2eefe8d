# SPDX-License-Identifier: Apache-2.0
"""Random expressions: compiled C must equal NumPy in float64 and float32, derivatives must equal
finite differences, and any text must parse or be refused with a message."""

import ctypes
import subprocess

import numpy as np
import scipy.special as sp
from hypothesis import given
from hypothesis import strategies as st
from kfgen.language.emit import Target, emit, evaluate
from kfgen.language.expr import ExprError, Graph, parse
from kfgen.language.gradient import gradient
from kfgen.language.primitives import BOOLEAN, CALLABLE

from examples import examples

NAMES = ("x", "y", "z")
# Every primitive, with its argument mapped into the range where it is defined and does not
# overflow.
FORMS = [
    "({} + {})",
    "({} - {})",
    "({} * {})",
    "-{}",
    "{} / (1 + abs({}))",
    "abs({})",
    "max({}, {})",
    "min({}, {})",
    "exp(2 * sin({}))",
    "expm1(2 * sin({}))",
    "log(abs({}) + 0.25)",
    "log1p(abs({}))",
    "log1p01(sigmoid({}))",
    "sqrt(abs({}) + 0.25)",
    "rsqrt(abs({}) + 0.25)",
    "rcp(abs({}) + 0.25)",
    "sin({})",
    "cos({})",
    "tanh({})",
    "sigmoid({})",
    "erf({})",
    "normcdf({})",
    "normpdf({})",
    "gelu({})",
    "gelu_bwd({})",
    "where({} > {}, {}, {})",
    "where({} <= {} and not {} == 1, {}, {})",
    "where({} < 0 or {} >= 1, {}, {})",
    "where({} != {}, {}, {})",
]
leaf = st.sampled_from([*NAMES, *NAMES, "1", "2", "0.5", "-3", "1e-3", "7.25"])
expressions = st.recursive(
    leaf,
    lambda inner: st.sampled_from(FORMS).flatmap(
        lambda form: st.tuples(*[inner] * form.count("{}")).map(lambda parts: form.format(*parts))
    ),
    max_leaves=12,
)
POINTS = 64  # per expression
HEAD = '#include "kf/core/elementwise/elementwise.h"\n#define N 64\n'


def graph_of(text):
    graph = Graph()
    env = {n: graph.var(n) for n in NAMES}
    return graph, env, parse(graph, text, env)


def inputs(k):
    rng = np.random.default_rng(k)
    # Exact in float32.
    return {n: np.round(rng.uniform(-3, 3, POINTS) * 1024) / 1024 for n in NAMES}


def scale(graph, root, values):
    """Returns (first-order bound of the error in y from one rounding per intermediate, points to
    exclude).

    Excluded are points near a discontinuity of a comparison, where first order is not enough.
    """
    nodes = [i for i in graph.reachable([root]) if not graph.is_bool(i)]
    adjoints = gradient(graph, {root: graph.const(1.0)}, nodes)
    known = [i for i in nodes if adjoints[i] is not None]
    derivatives = evaluate(graph, [adjoints[i] for i in known], values, np, sp)
    terms = evaluate(graph, known, values, np, sp)
    near = np.zeros(POINTS, bool)
    for i in graph.reachable([root]):
        node = graph.nodes[i]
        if node.op in BOOLEAN - {"and", "or", "not"} or node.op in ("max", "min", "abs"):
            a, b = (evaluate(graph, [*node.args], values, np, sp) + [np.float64(0)])[:2]
            near |= np.broadcast_to(np.abs(a - b) < 1e-4 * (np.abs(a) + np.abs(b) + 1e-3), POINTS)
    with np.errstate(all="ignore"):
        return sum(np.abs(s * t) for s, t in zip(derivatives, terms)) + np.zeros(POINTS), near


def compiled(texts, flavour, include, folder):
    """Compiles each expression as a C function over arrays, printed like kernels."""
    ctype, target = ("double", "f64") if flavour == "f64" else ("float", "f32")
    source = HEAD
    for k, text in enumerate(texts):
        graph, _, root = graph_of(text)
        lines, (value,) = emit(
            graph, [root], Target("kfi_cpu_", target, True), {n: f"{n}[j]" for n in NAMES}
        )
        body = "".join(f"        {line}\n" for line in lines)
        unused = "".join(f"    (void){n};\n" for n in NAMES)
        source += (
            f"void f{k}(const {ctype} *x, const {ctype} *y, const {ctype} *z, {ctype} *out);\n"
        )
        source += f"void f{k}(const {ctype} *x, const {ctype} *y, const {ctype} *z, {ctype} *out)\n"
        source += f"{{\n{unused}"
        source += (
            f"    for (int j = 0; j < N; ++j) {{\n{body}        out[j] = {value};\n    }}\n}}\n"
        )
    name = folder / f"e{abs(hash(source))}"
    name.with_suffix(".c").write_text(source)
    command = [
        "gcc",
        "-std=c11",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-unused-variable",
        "-shared",
        "-fPIC",
        *(f"-I{d}" for d in include),
        str(name.with_suffix(".c")),
        "-o",
        str(name.with_suffix(".so")),
        "-lm",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stderr[:3000]}\n{texts}"
    return ctypes.CDLL(str(name.with_suffix(".so")))


@examples(5)
@given(texts=st.lists(expressions, min_size=40, max_size=40))
def test_c_is_numpy(texts, include, tmp_path_factory):
    """The error may be 64 roundings of every intermediate: a primitive makes a few."""
    for flavour, dtype, eps in (("f64", np.float64, 2.0**-52), ("f32", np.float32, 2.0**-23)):
        lib = compiled(texts, flavour, include, tmp_path_factory.getbasetemp())
        for k, text in enumerate(texts):
            graph, _, root = graph_of(text)
            values = inputs(k)
            want = np.broadcast_to(evaluate(graph, [root], values, np, sp)[0], POINTS)
            bound, near = scale(graph, root, values)
            arrays = [np.ascontiguousarray(values[n], dtype) for n in NAMES]
            got = np.full(POINTS, np.nan, dtype)
            getattr(lib, f"f{k}")(*(ctypes.c_void_p(a.ctypes.data) for a in (*arrays, got)))
            usable = ~near & np.isfinite(want) & (np.abs(bound) < 1e30)
            error = np.abs(got.astype(np.float64) - want)
            bad = usable & ~(error <= 64 * eps * (np.abs(want) + bound) + np.finfo(dtype).tiny)
            at = np.flatnonzero(bad)
            assert not at.size, (
                f"{text} in {flavour} at { ({n: v[at[0]] for n, v in values.items()}) }: "
                f"got {got[at[0]]!r}, expected {want[at[0]]!r}, "
                f"error {error[at[0]]:.3g}, "
                f"bound {64 * eps * (abs(want[at[0]]) + bound[at[0]]):.3g}"
            )


@examples(150)
@given(text=expressions, wrt=st.sampled_from(NAMES))
def is_the_finite_difference(checked, text, wrt):
    """Compares a derivative with the difference quotient, where two step sizes agree on it."""
    graph, env, root = graph_of(text)
    values = inputs(1)
    node = gradient(graph, {root: graph.const(1.0)}, [env[wrt]])[env[wrt]]
    got = np.broadcast_to(
        evaluate(graph, [node], values, np, sp)[0] if node is not None else 0.0, POINTS
    )

    def f(shift):
        return np.broadcast_to(
            evaluate(graph, [root], {**values, wrt: values[wrt] + shift}, np, sp)[0], POINTS
        )

    def difference(h):
        return (8 * (f(h) - f(-h)) - (f(2 * h) - f(-2 * h))) / (12 * h)

    one, two = difference(1e-3), difference(5e-4)
    _, near = scale(graph, root, values)
    size = np.abs(one) + 1e-6 * np.abs(f(0)) + 1e-9
    # A kink inside the stencil invalidates the difference.
    for shift in (-2e-3, -1e-3, 1e-3, 2e-3):
        near = (
            near
            | scale(graph, root, {**values, wrt: values[wrt] + shift})[1]
            | kinks_between(graph, root, values, wrt, shift)
        )
    agree = ~near & (np.abs(one - two) <= 1e-7 * size)
    wrong = np.flatnonzero(agree & ~(np.abs(got - two) <= 1e-5 * size))
    assert not wrong.size, (
        f"d({text})/d{wrt} at { ({n: v[wrong[0]] for n, v in values.items()}) }: "
        f"got {got[wrong[0]]}, expected {two[wrong[0]]}"
    )
    checked.append(agree.mean())


def kinks_between(graph, root, values, wrt, shift):
    """Returns the points where a comparison, the sign of an abs or the result of a max changes
    between a point and its neighbour."""
    moved, found = {**values, wrt: values[wrt] + shift}, np.zeros(POINTS, bool)
    for i in graph.reachable([root]):
        node = graph.nodes[i]
        if node.op in BOOLEAN - {"and", "or", "not"} or node.op in ("max", "min", "abs"):
            here, there = (
                (evaluate(graph, [*node.args], v, np, sp) + [np.float64(0)])[:2]
                for v in (values, moved)
            )
            found |= np.broadcast_to(
                np.sign(here[0] - here[1]) != np.sign(there[0] - there[1]), POINTS
            )
    return found


def test_derivative_is_the_finite_difference():
    """Derivatives must equal finite differences. Points with kinks or unsettled differences must be
    few, so that most are compared."""
    checked = []
    is_the_finite_difference(checked)
    assert len(checked) >= 100 and np.mean(checked) > 0.5, (len(checked), np.mean(checked))


PIECES = [
    *CALLABLE,
    *NAMES,
    "act_bwd",
    "(",
    ")",
    ",",
    "+",
    "-",
    "*",
    "/",
    "**",
    "<",
    "==",
    " and ",
    " or ",
    " not ",
    "1",
    "0.5",
    "1j",
    "'a'",
    "=",
    ";",
    "\n",
    "[",
    "]",
    ":",
    ".",
    "lambda ",
    " if ",
    " else ",
    "~",
    "%",
    "@",
    "*x",
    "True",
    "None",
    "x=1",
    "\\",
    "\0",
    "f''",
    "1e39",
    "1e999",
    "9" * 400,
    "-" * 3000,
    "(" * 250,
    " + x" * 3000,
]


@examples(400)
@given(
    text=st.one_of(
        st.text(max_size=12), st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
    )
)
def test_any_text(text):
    graph = Graph()
    env = {n: graph.var(n) for n in NAMES}
    try:
        root = parse(graph, text, env)
    except ExprError as e:
        assert str(e) and "\n" not in str(e).split("`")[0]
        return
    assert not graph.is_bool(root) and graph.variables([root]) <= set(NAMES)
    emit(graph, [root], Target("kfi_cpu_", "f32", True), {})
    gradient(graph, {root: graph.const(1)}, list(env.values()))
