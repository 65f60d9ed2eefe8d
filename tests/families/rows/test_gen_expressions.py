# SPDX-License-Identifier: Apache-2.0
"""Reductions over a row in the expression language: values, gradients, and the number of passes
over a row."""

import numpy as np
import pytest
import scipy.special as sp
from kfgen.entries import expand, spec
from kfgen.families.rows import reference as rows_reference
from kfgen.language.emit import evaluate
from kfgen.language.expr import ExprError, Graph, parse, stages
from kfgen.language.gradient import gradient
from kfgen.language.primitives import ELEM, KEEP, KEEP_SCALE, ROW, UNIFORM, row_names

ROWS, COLS = 3, 7
# name: (expression of x, w and eps, the same in NumPy, passes forward, passes of the gradient of x)
FUNCTIONS = {
    "rms_norm": (
        "x * rsqrt(mean(x * x) + eps) * w",
        lambda x, w, eps: x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w,
        1,
        1,
    ),
    "layer_norm": (
        "d = x - mean(x); d * rsqrt(mean(d * d) + eps) * w",
        lambda x, w, eps: (
            (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * w
        ),
        2,
        2,
    ),
    "softmax": (
        "e = exp(x - stop(max(x))); e / sum(e) * w",
        lambda x, w, eps: sp.softmax(x, -1) * w,
        2,
        3,
    ),
    "log_softmax": (
        "z = x - stop(max(x)); (z - log(sum(exp(z)))) * w",
        lambda x, w, eps: sp.log_softmax(x, -1) * w,
        2,
        2,
    ),
    "l2_normalize": (
        "x * rsqrt(max(sum(x * x), eps)) * w",
        lambda x, w, eps: x / np.sqrt(np.maximum((x * x).sum(-1, keepdims=True), eps)) * w,
        1,
        1,
    ),
    "of a difference": (
        "sum(abs(x - w))",
        lambda x, w, eps: np.abs(x - w).sum(-1, keepdims=True),
        1,
        0,
    ),
    "largest and least": (
        "max(x * w) - min(x) * eps",
        lambda x, w, eps: (x * w).max(-1, keepdims=True) - x.min(-1, keepdims=True) * eps,
        1,
        2,
    ),
    "standard deviation": (
        "d = x - mean(x); sqrt(mean(d * d))",
        lambda x, w, eps: x.std(-1, keepdims=True),
        2,
        2,
    ),
    "one side of zero": (
        "sum(where(x > 0, x * w, eps))",
        lambda x, w, eps: np.where(x > 0, x * w, eps).sum(-1, keepdims=True),
        1,
        0,
    ),
}


def build(text):
    graph = Graph(levels={"eps": UNIFORM, "r": ROW})
    env = {name: graph.var(name) for name in ("x", "w", "eps", "r")}
    return graph, env, parse(graph, text, env)


def draw(seed=5):
    rng = np.random.default_rng(seed)
    return {
        "x": rng.standard_normal((ROWS, COLS)),
        "w": rng.uniform(0.5, 2, COLS),
        "eps": np.float64(0.1),
    } | row_names(COLS, np)


def value_of(graph, root, env):
    return evaluate(graph, [root], env, np, sp)[0]


def test_pick():
    """`pick` loads a row's element by column, NaN outside. Its gradient belongs to that element
    alone; for a row operand it is summed per column."""
    graph, names, root = build("pick(x, r) * pick(w, r)")
    env = draw() | {"r": np.array([[2.0], [-1.0], [COLS]])}
    x, w = env["x"], env["w"]
    np.testing.assert_array_equal(
        value_of(graph, root, env), [[x[0, 2] * w[2]], [np.nan], [np.nan]]
    )
    graph.levels["dy"] = ROW
    found = gradient(graph, {root: graph.var("dy")}, [names["x"], names["w"]])
    for name, other in (("x", w[2]), ("w", x[0, 2])):
        want = np.zeros((ROWS, COLS))
        want[0, 2] = 3.0 * other
        np.testing.assert_array_equal(
            value_of(graph, found[names[name]], env | {"dy": np.full((ROWS, 1), 3.0)}), want
        )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name):
    text, reference, passes, _ = FUNCTIONS[name]
    graph, _, root = build(text)
    env = draw()
    np.testing.assert_allclose(
        value_of(graph, root, env), reference(env["x"], env["w"], env["eps"]), rtol=1e-13
    )
    assert max(stages(graph, [root]).values()) + 1 == passes


@pytest.mark.parametrize("wrt", ["x", "w"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients(name, wrt):
    """Gradients must match central differences of the reference, for random gradients of the
    result."""
    text, reference, _, passes = FUNCTIONS[name]
    graph, names, root = build(text)
    env = draw()
    dy = np.random.default_rng(6).standard_normal(np.shape(value_of(graph, root, env)))
    graph.levels["dy"] = graph.level(root)
    found = gradient(graph, {root: graph.var("dy")}, [names[wrt]])[names[wrt]]
    if wrt == "w" and found is None:
        assert name == "standard deviation"
        return
    got = np.broadcast_to(
        value_of(graph, found, env | {"dy": dy}), (ROWS, COLS)
    )  # for w the sum over the rows is missing
    got = got.sum(0) if wrt == "w" else got
    for place in np.ndindex(np.shape(env[wrt])):
        near = []
        for step in (1e-6, -1e-6):
            moved = env[wrt].copy()
            moved[place] += step
            near.append(
                (
                    reference(**{n: moved if n == wrt else env[n] for n in ("x", "w", "eps")}) * dy
                ).sum()
            )
        assert abs((near[0] - near[1]) / 2e-6 - got[place]) < 1e-7, place
    if wrt == "x":
        assert max((p + 1 for p in stages(graph, [found]).values()), default=0) == passes


def test_ties_share_the_gradient():
    graph, names, root = build("max(x)")
    graph.levels["dy"] = ROW
    found = gradient(graph, {root: graph.var("dy")}, [names["x"]])[names["x"]]
    x = np.array([[1.0, 3.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0]])
    got = value_of(graph, found, {"x": x, "dy": np.array([[2.0], [8.0]])})
    assert np.array_equal(got, [[0, 1, 1, 0], [2, 2, 2, 2]])


def test_the_same_twice_is_doubled_once_a_row():
    graph, names, root = build("r * x * (r * x)")
    graph.levels["dy"] = ROW
    found = gradient(graph, {root: graph.var("dy")}, [names["x"]])[names["x"]]
    doubled = [i for i in graph.reachable([found]) if graph.nodes[i].op == "add"]
    assert doubled and all(graph.level(i) == ROW for i in doubled)


def test_a_mask_is_applied_behind_the_activation_once():
    """Dropout's mask must follow the activation's gradient, which may be infinite for a dropped
    element, and must not repeat in each sum."""
    graph = Graph(levels={"r": ROW})
    names = {name: graph.var(name) for name in ("x", "w", "r")}
    root = parse(
        graph, "dropout(act((x - mean(x)) * r * w))", names | {"act": None, "dropout": None}
    )
    found = gradient(graph, {root: graph.var("dy")}, list(names.values()))
    nodes = [graph.nodes[i] for i in graph.reachable(list(found.values()))]
    masked = [n for n in nodes if n.op == "where"]
    assert (
        len(masked) == 1
        and graph.nodes[masked[0].args[0]].value == KEEP
        and graph.nodes[masked[0].args[1]].op == "act_bwd"
    )
    assert graph.level(graph.var(KEEP_SCALE)) == UNIFORM


def test_what_is_the_same_for_a_row_leaves_the_sum():
    """Values that are uniform over a row must leave the sums: the gradient of a layer norm with
    saved mean and rstd then needs one pass."""
    graph = Graph(levels={"mean": ROW, "rstd": ROW})
    x, w, dy = graph.var("x"), graph.var("w"), graph.var("dy")
    local = Graph(levels={})
    root = parse(
        local,
        "d = x - mean(x); d * rsqrt(mean(d * d) + 1e-5) * w",
        {"x": local.var("x"), "w": local.var("w")},
    )
    dx = gradient(local, {root: local.var("dy")}, [local.var("x")])[local.var("x")]
    rsqrt = next(i for i, n in enumerate(local.nodes) if n.op == "rsqrt")
    mean = next(i for i, n in enumerate(local.nodes) if n.op == "div")
    new = {
        rsqrt: graph.var("rstd"),
        mean: graph.var("mean"),
        local.var("x"): x,
        local.var("w"): w,
        local.var("dy"): dy,
    }
    for i in local.reachable([dx]):
        if i not in new:
            new[i] = graph.add(
                local.nodes[i].op,
                *(new[a] for a in local.nodes[i].args),
                value=local.nodes[i].value,
            )
    assert set(stages(graph, [new[dx]]).values()) == {0}
    rng = np.random.default_rng(1)
    X, W, DY = rng.standard_normal((4, 9)), rng.uniform(0.5, 2, 9), rng.standard_normal((4, 9))
    m, r = X.mean(-1, keepdims=True), 1 / np.sqrt(X.var(-1, keepdims=True) + 1e-5)
    hat, g = (X - m) * r, DY * W
    want = r * (g - g.mean(-1, keepdims=True) - hat * (g * hat).mean(-1, keepdims=True))
    np.testing.assert_allclose(
        value_of(
            graph, new[dx], {"x": X, "w": W, "dy": DY, "mean": m, "rstd": r} | row_names(9, np)
        ),
        want,
        atol=1e-12,
    )


@pytest.mark.parametrize(
    "text, message",
    [
        ("sum(r)", "constant within a row"),
        ("x * mean(eps)", "constant within a row"),
        ("sum(x, w)", "takes 1"),
        ("max(r)", "constant within a row"),
        ("mean()", "takes 1"),
        ("rowmax(x)", "calls `rowmax`"),
        ("sum(x > 0)", "uses the condition"),
    ],
)
def test_refused(text, message):
    with pytest.raises(ExprError, match=message):
        build(text)


@pytest.mark.parametrize("word", ["sum", "mean", "stop"])
def test_only_over_rows(word):
    graph = Graph()
    with pytest.raises(ExprError, match=f"calls `{word}`, which this op's family does not have"):
        parse(graph, f"{word}(x)", {"x": graph.var("x")})


def test_levels():
    graph, names, root = build("x * r + eps")
    assert [graph.level(names[n]) for n in ("x", "w", "r", "eps")] == [
        ELEM,
        ELEM,
        ROW,
        UNIFORM,
    ] and graph.level(root) == ELEM
    assert graph.level(parse(graph, "sum(x * r) * eps", names)) == ROW


def test_a_sum_may_leave_the_range_on_its_way():
    """The bound must exclude rows whose sum overflows float32 in some order, even if the total is
    small."""
    loaded = spec.load()
    kernel = next(
        k for k in expand.kernels(loaded.ops["mean"]) if k.dtypes == ("f32",) and not k.bwd
    )
    bound = rows_reference.Bound(kernel, loaded.activations["none"])
    x = np.array([[2e38, 2e38, -2e38, -2e38], [2e36, 2e36, -2e36, -2e36]])
    _, beyond = bound.evaluate({"x": x}, 4, 2.0**-24, 0.0, 3.4e38)
    assert beyond.tolist() == [True, False]
