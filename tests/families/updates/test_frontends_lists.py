# SPDX-License-Identifier: Apache-2.0
"""Overwritten tensors and lists in Python: kf.load of a family of a user's own, NumPy arrays,
tensors, torch.compile, autograd, errors, and what a GPU's functions are compiled from.
"""

import lists
import numpy as np
import nvrtc
import pytest
import pytorch
import toolkit

torch = pytorch.load()


@pytest.fixture(scope="module")
def ops(kf):
    if not hasattr(ops, "names"):
        ops.names = kf.load(families=[lists.FOLDER])
    assert ops.names == ["momentum", "moving_average"] and set(ops.names) <= set(dir(kf.ops))
    return kf.ops


SHAPES = ((2, 3), (0,), (), (5,), (2, 3, 4, 4))


def drawn(dtype=torch.float32, state=None):
    """Returns param, grad, velocity; the last tensor of each is channels_last."""
    draw = torch.Generator().manual_seed(3)
    found = [
        [torch.randn(shape, generator=draw).to(kind) for shape in SHAPES]
        for kind in (dtype, dtype, state or dtype)
    ]
    return [[*own[:-1], own[-1].to(memory_format=torch.channels_last)] for own in found]


def stepped(param, grad, velocity, rate=0.125, decay=0.75):
    """Returns the next (param, velocity)."""
    wide = torch.float64 if param[0].dtype == torch.float64 else torch.float32
    new = [decay * v.to(wide) + g.to(wide) for g, v in zip(grad, velocity)]
    return (
        [(p.to(wide) - rate * v).to(p.dtype) for p, v in zip(param, new)],
        [v.to(old.dtype) for v, old in zip(new, velocity)],
    )


def assert_close(found, want):
    for a, b in zip(found, want):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    "dtype, state",
    [(torch.float32, None), (torch.float64, None), (torch.bfloat16, torch.float32)],
    ids=str,
)
def test_tensors(ops, dtype, state):
    param, grad, velocity = drawn(dtype, state)
    want, before = stepped(param, grad, velocity, 0.5), [x._version for x in param]
    same = [x.clone() for x in grad]
    assert ops.momentum(param, grad, velocity, rate=0.5) is None
    assert_close(param, want[0]), assert_close(velocity, want[1]), assert_close(grad, same)
    assert [x._version for x in param] == [n + 1 for n in before]


def test_arrays(ops):
    tensors = [[x.contiguous() for x in own] for own in drawn()]
    want = stepped(*tensors)
    arrays = [[x.numpy().copy() for x in own] for own in tensors]
    strided = np.asfortranarray(arrays[1][0])  # copied: it is not overwritten
    assert ops.momentum(arrays[0], [strided, *arrays[1][1:]], tuple(arrays[2])) is None
    assert_close([torch.tensor(x) for x in arrays[0]], want[0])
    assert_close([torch.tensor(x) for x in arrays[2]], want[1])
    average = np.zeros(5)
    ops.moving_average(average, np.ones(5), weight=0.5)
    assert (average == 0.5).all()


def test_no_tensors(ops):
    assert ops.momentum([], [], []) is None
    ops.momentum([torch.zeros(0)], [torch.zeros(0)], [torch.zeros(0)])


def test_compiled(ops):
    """The op mutates its arguments in a compiled graph, which reads a tensor before and after."""

    def step(param, grad, velocity):
        before = param[0] + 1
        ops.momentum(param, [g * 2 for g in grad], velocity, rate=0.5)
        return before, param[0] + 1

    given = drawn()
    want = stepped(given[0], [g * 2 for g in given[1]], given[2], 0.5)
    first = given[0][0] + 1
    before, after = torch.compile(step, fullgraph=True)(*given)
    assert_close(given[0], want[0]), assert_close(given[2], want[1])
    assert_close([before, after], [first, want[0][0] + 1])


def test_opcheck(ops):
    torch.library.opcheck(torch.ops.kf.momentum.default, (*drawn(), 0.1, 0.5))
    torch.library.opcheck(
        torch.ops.kf.moving_average.default, (torch.zeros(7), torch.ones(7), 0.25)
    )
    schema = str(torch.ops.kf.momentum.default._schema)
    assert "(Tensor(a0!)[] param, Tensor[] grad, Tensor(a2!)[] velocity, float rate" in schema
    assert schema.endswith("-> ()")


def test_no_gradient(ops):
    """A call that would lose a gradient is refused; autograd notices a tensor that changed."""
    param = torch.nn.Parameter(torch.randn(3))
    others = [torch.ones(3)], [torch.ones(3)]
    for call in (ops.momentum, lambda *a: torch.ops.kf.momentum(*a, 0.1, 0.5)):
        with pytest.raises(RuntimeError, match=r"param\[0\] requires a gradient"):
            call([param], *others)
    result = (param * param).sum()
    with torch.no_grad():
        ops.momentum([param], *others)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


x = torch.zeros(6)
REFUSED = [
    (([x], [], [x]), ValueError, "grad has 0 tensors, expected 1 beside param"),
    ((x, [x], [x]), TypeError, "param is Tensor, expected a list of tensors"),
    (([x, 3], [x, x], [x, x]), TypeError, "param has int, expected a tensor"),
    (([x], [x[:5]], [x]), ValueError, r"grad\[0\] has the shape \(5,\), expected \(6,\)"),
    (([x], [x.double()], [x]), TypeError, "grad has the dtype f64, expected f32"),
    (
        ([x, x.double()], [x, x], [x, x]),
        TypeError,
        r"param\[1\] has the dtype f64, expected f32 beside param\[0\]",
    ),
    (([x], [x], [x.clone()]), ValueError, r"kf.momentum: .*param\[0\] at .* overlaps grad\[0\]"),
    (([x[::2]], [x[:3]], [x[3:]]), ValueError, r"param\[0\] has the strides \(2,\)"),
]


@pytest.mark.parametrize("given, kind, message", REFUSED)
def test_refused(ops, given, kind, message):
    """Errors are the same for tensors and arrays where both have the fault."""
    with pytest.raises(kind, match=message):
        ops.momentum(*given)


@pytest.mark.parametrize("given, kind, message", [r for r in REFUSED if "dtype" in r[2]])
def test_arrays_refused(ops, given, kind, message):
    with pytest.raises(kind, match=message):
        ops.momentum(*[[x.numpy() for x in own] for own in given])


def test_other_errors(ops):
    with pytest.raises(ValueError, match=r"param\[0\] is overwritten, expected contiguous"):
        ops.momentum(*[[np.zeros(6)[::2]]] * 3)
    with pytest.raises(ValueError, match="weight is 2.0, expected at least 0 and at most 1"):
        ops.moving_average(torch.zeros(3), torch.zeros(3), weight=2)
    with pytest.raises(TypeError, match="rate is Tensor, expected a number"):
        ops.momentum([x], [x], [x], rate=torch.ones(()))
    with pytest.raises(TypeError, match=r"kf.momentum: .*'size'"):
        ops.momentum([x], [x], [x], size=3)


def test_a_second_load(kf, ops):
    assert "momentum" in kf.load(families=[lists.FOLDER])


def test_jax_lacks_them(ops, kf):
    """Arrays of JAX are constant."""
    pytest.importorskip("jax")
    for name in ("momentum", "moving_average"):
        with pytest.raises(AttributeError, match=f"kf.jax has no `{name}`, which overwrites"):
            getattr(kf.jax, name)
        assert name not in dir(kf.jax)


def test_without_a_compiler(ops, kf):
    """NumPy computes the same from the manifest's statements."""
    from kernel_fusion import _first_call, _interpreted, _table

    op, _ = _table.functions()["momentum"]
    unit = _first_call.Unit("none", ("f32",))
    made, before = _interpreted.Interpreted(op.own.manifest(unit)), op.own.made.get(unit)
    arrays = [[x.contiguous().numpy().copy() for x in own] for own in drawn()]
    want = stepped(*[[torch.tensor(x) for x in own] for own in arrays])
    op.own.made[unit] = made
    try:
        ops.momentum(*arrays)
    finally:
        op.own.made.pop(unit)
        op.own.made.update({unit: before} if before else {})
    assert_close([torch.tensor(x) for x in arrays[0]], want[0])
    assert_close([torch.tensor(x) for x in arrays[2]], want[1])


@pytest.mark.check
@pytest.mark.skipif(not (toolkit.nvrtc() and toolkit.include()), reason="no NVRTC")
def test_functions_of_a_gpu(ops):
    """A C++ compiler compiles the launchers, and NVRTC the text of the kernels."""
    from kernel_fusion import _first_call, _table
    from kfgen.render import source

    op, _ = _table.functions()["momentum"]
    gpu, unit = op.own.on_gpu, _first_call.Unit("none", ("bf16", "f32"))
    assert gpu.prepare(unit) or gpu.is_ready(unit)
    function = op.function(*unit, False)
    launcher, _ = source.find(gpu.selection(unit), function)
    asked = source.kernel_names(launcher)
    assert len(nvrtc.compile_text(gpu.text(function), asked)[1]) == len(asked) == 2


def test_documented(ops):
    text = ops.momentum.__doc__
    assert "velocity: list of tensors, param's dtype or float32; overwritten by its next" in text
    assert "Returns None. param, grad, velocity have tensors of the same shapes" in text
