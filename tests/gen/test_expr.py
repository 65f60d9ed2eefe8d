# SPDX-License-Identifier: Apache-2.0
"""The expression compiler: evaluation order, printing, and derivatives at difficult points."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.special as sp
from kfgen.language.emit import Printed, Target, emit, evaluate
from kfgen.language.expr import Graph, parse
from kfgen.language.gradient import gradient, substitute
from kfgen.language.primitives import OVER_ROWS, PRIMITIVES, ROW

CUDA = Target("kfi_", "f32", False)
C = Target("kfi_cpu_", "f32", True)


def build(text, *names, levels=None):
    graph = Graph(levels, whole="nm")
    env = {n: graph.var(n) for n in names}
    return graph, env, parse(graph, text, env)


def printed(text, *names, target=CUDA):
    graph, _, root = build(text, *names)
    lines, (value,) = emit(graph, [root], target, {})
    return lines, value


def test_the_names_that_texts_read():
    """Generated code declares exactly these: plain strings are names, others say what they read."""
    names = "a", "b", "c", "n", "m", "act"
    graph, env, root = build("act(a * b) + where(n < m, c, a)", *names, levels={"m": ROW})
    target = replace(
        C,
        act=lambda x: f"act({x}, slope)",
        called={"act": ("slope",)},
        whole={"n": "n_i", "m": "m_i"},
    )
    texts = {"a": Printed("(float)a_j", ["a"]), "b": "b_i", "n": "never", "m": "never"}
    product = graph.add("mul", env["a"], env["b"])
    names = set()
    emit(graph, [root], target, texts, printed=names)
    assert names == {"a", "b_i", "c", "slope", "n_i", "m_i"}
    names = set()
    held = {product: ("kept", Printed("on ? kept_h[j] : {}", ["on", "kept_h"]))}
    emit(graph, [root], target, texts, fixed={env["c"]: "row0"}, named=held, printed=names)
    assert names == {"a", "b_i", "row0", "slope", "n_i", "m_i", "on", "kept_h"}


def slope(text, wrt="x", **values):
    graph, env, root = build(text, *values)
    grads = gradient(graph, {root: graph.const(1)}, [env[wrt]])
    found = grads[env[wrt]]
    return (
        0.0
        if found is None
        else np.asarray(
            evaluate(graph, [found], {n: np.float64(v) for n, v in values.items()}, np, sp)[0]
        )[()]
    )


@pytest.mark.parametrize(
    "text",
    [
        "a - (b - c)",
        "a - b - c",
        "a + (b + c)",
        "a + b + c",
        "a * (b * c)",
        "a * b * c",
        "a * (b + c)",
        "-(a + b) * c",
        "-a * b",
        "a - (b + c)",
        "a * b + c",
        "a - -b",
    ],
)
def test_written_order_is_kept(text):
    _, value = printed(text, "a", "b", "c")
    assert value.replace("(-b)", "-b") == text


def test_written_order_is_computed():
    x = np.float64(1e16)
    for text, want in (("(x + 1) - x", (x + 1) - x), ("x + (1 - x)", x + (1 - x))):
        graph, _, root = build(text, "x")
        assert evaluate(graph, [root], {"x": x}, np, sp)[0] == want


def test_common_subexpressions_are_one_node():
    graph, _, root = build("exp(x * y) + exp(x * y)", "x", "y")
    assert (
        sum(n.op == "exp" for n in graph.nodes) == 1
        and sum(n.op == "mul" for n in graph.nodes) == 1
    )
    assert graph.nodes[root].args[0] == graph.nodes[root].args[1]
    lines, value = printed("exp(x * y) + exp(x * y)", "x", "y")
    assert lines == ["const float t0 = kfi_exp_f32(x * y);"] and value == "t0 + t0"
    # Not the same: another order, another type or sign of a number.
    graph, _, _ = build("x * y + y * x + 0.0 * x + -0.0 * x + 1 * x + 1.0 * x", "x", "y")
    assert sum(n.op == "mul" for n in graph.nodes) == 6


def test_conditions_in_both_languages():
    value = printed("where(x > 0 and not x >= 6, x, 0)", "x")[1]
    assert (
        value.replace("((x > 0.0f))", "(x > 0.0f)") == "((x > 0.0f) && (!(x >= 6.0f)) ? x : 0.0f)"
    )
    assert (
        printed("where(x > 0, x, 0)", "x", target=C)[1]
        == "kfi_cpu_select_f32(kfi_cpu_gt_f32(x, 0.0f), x, 0.0f)"
    )


def test_guard_is_applied_last():
    """0 * inf: the derivative of the arm that is not taken is infinite or NaN, the result is 0."""
    assert slope("where(x > 0, log(x), 0)", x=0.0) == 0.0
    assert slope("where(x > 0, sqrt(x) * x, 0)", x=0.0) == 0.0
    assert slope("where(x > 0, log(x), 0) * 3", x=-0.0) == 0.0
    assert slope("where(x > 0, where(x < 1, log(x), x), 0)", x=0.0) == 0.0
    assert slope("where(x > 0, log(x), 0)", x=2.0) == 0.5


def test_arms_of_one_where_are_merged():
    graph, env, root = build("where(x > 0, 2 * x, 3 * x)", "x")
    found = gradient(graph, {root: graph.const(1)}, [env["x"]])[env["x"]]
    assert graph.nodes[found].op == "where"
    assert (
        slope("where(x > 0, 2 * x, 3 * x)", x=1.0) == 2.0
        and slope("where(x > 0, 2 * x, 3 * x)", x=-1.0) == 3.0
    )


@pytest.mark.parametrize("word", ["max", "min"])
def test_ties(word):
    """PyTorch: a tie gives each half, NaN passes the gradient to both."""
    for a, b, da in (
        (1.0, 2.0, word == "min"),
        (2.0, 1.0, word == "max"),
        (1.0, 1.0, 0.5),
        (np.nan, 1.0, 1.0),
        (1.0, np.nan, 1.0),
    ):
        assert slope(f"{word}(a, b)", "a", a=a, b=b) == da
    assert slope(f"{word}(x, x)", x=3.0) == 1.0


def test_kink_of_abs():
    assert [slope("abs(x)", x=v) for v in (2.0, -2.0, 0.0, -0.0)] == [1.0, -1.0, 0.0, 0.0]
    assert np.isnan(slope("abs(x)", x=np.nan)) or slope("abs(x)", x=np.nan) == 0.0


DIFFERENTIABLE = sorted(
    n for n, (_, rules) in PRIMITIVES.items() if rules and n != "act" and n not in OVER_ROWS
)  # those: tests/families/rows/test_gen_expressions.py
RANGE = {
    "log": (0.2, 4),
    "sqrt": (0.2, 4),
    "rsqrt": (0.2, 4),
    "log1p": (-0.8, 4),
    "log1p01": (0.05, 0.95),
    "rcp": (0.3, 4),
}


@pytest.mark.parametrize("word", DIFFERENTIABLE)
def test_rules_against_finite_differences(word):
    names = PRIMITIVES[word][0]
    assert set(PRIMITIVES[word][1]) == set(names)
    rng = np.random.default_rng(3)
    graph = Graph()
    env = {n: graph.var(n) for n in (*names, "dy")}
    root = graph.add(word, *(env[n] for n in names))
    grads = gradient(graph, {root: env["dy"]}, [env[n] for n in names])
    values = {n: rng.uniform(*RANGE.get(word, (-3, 3)), 50) for n in names} | {
        "dy": np.full(50, 1.5)
    }
    if len(names) == 2:  # away from ties, and from the pole of a quotient
        values["b"] = np.where(
            np.abs(values["b"] - values["a"]) < 0.1, values["a"] + 0.5, values["b"]
        )
        values["b"] = np.where(np.abs(values["b"]) < 0.3, 2.9, values["b"])
    for n in names:

        def f(v, n=n):
            return evaluate(graph, [root], {**values, n: v}, np, sp)[0]

        h = 1e-3
        x = np.where(np.abs(values[n]) < 0.01, 0.5, values[n])
        values[n] = x
        want = 1.5 * (8 * (f(x + h) - f(x - h)) - (f(x + 2 * h) - f(x - 2 * h))) / (12 * h)
        got = evaluate(graph, [grads[env[n]]], values, np, sp)[0]
        np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-9)


def test_what_cannot_be_differentiated_says_so():
    graph, env, root = build("x * 2", "x")
    node = graph.add("act_bwd", root, env["x"])
    with pytest.raises(Exception, match="has no derivative"):
        gradient(graph, {node: graph.const(1)}, [env["x"]])


def test_unread_input_has_no_gradient():
    graph, env, root = build("2 * a", "a", "b")
    assert gradient(graph, {root: graph.const(1)}, [env["b"]])[env["b"]] is None


def test_substitute_inlines_the_activation():
    graph = Graph()
    x = graph.var("x")
    root = parse(graph, "act(x) + x", {"x": x, "act": None})
    target = Graph()
    (found,) = substitute(graph, target, [root], {}, act=(lambda a: target.add("tanh", a), None))
    assert evaluate(target, [found], {"x": 0.5}, np, sp)[0] == np.tanh(0.5) + 0.5


def test_numbers_are_exact():
    graph = Graph()
    for value in (0.1, 1 / 3, 1e-300, 5e-324, -0.0, 1.7976931348623157e308):
        text = Target("", "f64", False).const(value)
        assert float(text) == value and np.signbit(float(text)) == np.signbit(value)
        assert graph.nodes[graph.const(value)].value == value
    assert CUDA.const(6) == "6.0f" and Target("", "i64", False).const(6) == "(kf_i64)6"


def test_quotients_are_corrected_where_it_shows():
    """2-byte functions correct a quotient before a kink or a sum, not right before the rounding."""
    lp = Target("kfi_", "f32", False, cheap=frozenset({"div", "quotient"}))
    for text, word in (
        ("a / b", "quotient"),
        ("c * -(a / b)", "quotient"),
        ("a / b + c", "div"),
        ("max(a / b, c)", "div"),
        ("c - c * (a / b)", "div"),
        ("where(a / b > c, a, b)", "div"),
    ):
        lines, value = printed(text, "a", "b", "c", target=lp)
        assert f"kfi_{word}_lp(a, b)" in "".join([*lines, value]), text
    assert (
        "kfi_div_lp(a, b)"
        in printed(
            "a / b", "a", "b", target=Target("kfi_", "f32", False, cheap=frozenset({"div"}))
        )[1]
    )


def test_silu_is_one_word_where_results_have_2_bytes():
    """C has a silu whose sigmoid ignores NaN, since the other factor is NaN, too."""
    for text, masks, flavour, word in (
        ("a * sigmoid(a)", True, "lp", "silu_lp(a)"),
        ("a * sigmoid(b)", True, "lp", "sigmoid_lp(b)"),
        ("a * sigmoid(a)", True, "f32", "sigmoid_f32(a)"),
        ("a * sigmoid(a)", False, "lp", "sigmoid_lp(a)"),
    ):
        assert f"kfi_{word}" in printed(text, "a", "b", target=Target("kfi_", flavour, masks))[1], (
            text
        )
