# SPDX-License-Identifier: Apache-2.0
"""Functions on tensors of ops that overwrite their inputs: arrays of kf_tensor_t *, in C and in the
emulation.
"""

import ctypes

import emulator
import kflib
import lists
import numpy as np
import pytest
import runtime_api
import runtime_ops
import toolkit
from kfgen import families
from kfgen.entries import spec
from kfgen.interfaces import manifest
from kfgen.render.render import Renderer, Selection, write_all

pytestmark = pytest.mark.check
SHAPES = ((2, 3), (), (0, 4), (2, 3, 1, 5))


@pytest.fixture(
    scope="module",
    params=[
        "cpu",
        pytest.param(
            "emu", marks=pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")
        ),
    ],
)
def api(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runtime")
    families.load(lists.FOLDER)
    chosen = Selection(
        spec.load([lists.FOLDER / "ops.toml"]), ["momentum"], ["none"], ["f32", "bf16"]
    )
    write_all(Renderer(chosen).render(), folder, [])
    made = manifest.build(chosen)
    (folder / "ops.h").write_text(runtime_ops.runtime.render(made, "ops.h"))
    own = [f"-I{lists.FOLDER}/include"]
    if request.param == "cpu":
        flags = [f"-I{folder}", *own]
        library = runtime_api.compile_library(
            folder, *flags, text=runtime_ops.IMPLEMENTATION, name="ops.c"
        )
    else:
        link = [emulator.runtime(kflib.ROOT / "build/tests/emu", "plain")]
        flags = [f"-I{emulator.HERE}/include", f"-I{emulator.HERE}", f"-I{folder}", *own]
        flags += [f"-I{kflib.ROOT}/tests/support/emulation", *emulator.flags("plain")]
        text = '#include "emulated_memory.h"\n' + runtime_ops.IMPLEMENTATION
        library = runtime_api.compile_library(
            folder,
            *flags,
            compiler="g++ -std=c++17",
            warnings=(),
            link=link,
            text=text,
            name="emulated.cpp",
        )
    found = runtime_api.Api(library)
    found.device = 0 if request.param == "emu" else -1
    found.device_type = runtime_api.CUDA if request.param == "emu" else runtime_api.CPU
    return found


@pytest.fixture
def ctx(api):
    made = api.context(api.device)
    assert api.set_debug_mode(made, 1) == 0
    yield made
    assert api.context_destroy(made) == 0


def made_tensors(api, ctx, dtypes, shapes=SHAPES):
    """Returns {list: [(handle, float64 values)]}."""
    rng, found = np.random.default_rng(4), {}
    for name, dtype in zip(lists.LISTS, dtypes):
        found[name] = []
        for shape in shapes:
            t = api.create(ctx, shape, dtype)
            word = {0: "f32", 2: "bf16"}[dtype]
            values = lists.from_float(rng.standard_normal(shape), word)
            api.array(t)[...] = values
            found[name].append((t, lists.to_float(values, word)))
    return found


def call(api, name, ctx, handles, count=None, scalars=(0.125, 0.75)):
    held = [lists.table(own) for own in handles]
    fn = getattr(api.dll, name)
    fn.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64] + [ctypes.c_double] * 2
    fn.argtypes += [ctypes.c_void_p]
    return fn(ctx, *held, len(handles[0]) if count is None else count, *scalars, None)


@pytest.mark.parametrize("dtypes", [(0, 0, 0), (2, 2, 0)], ids=["f32", "bf16 and f32"])
def test_numbers(api, ctx, dtypes):
    given = made_tensors(api, ctx, dtypes)
    handles = [[t for t, _ in given[name]] for name in lists.LISTS]
    assert call(api, "kf_fused_momentum", ctx, handles) == 0, api.detail
    assert api.context_synchronize(ctx) == 0
    words = [{0: "f32", 2: "bf16"}[d] for d in dtypes]
    for i in range(len(SHAPES)):
        x = {name: given[name][i][1] for name in lists.LISTS}
        for name, (want, size) in lists.momentum({"rate": 0.125, "decay": 0.75}, x).items():
            word = words[lists.LISTS.index(name)]
            got = lists.to_float(api.array(given[name][i][0]), word)
            lists.assert_near(got, want, size, word, words[0])
    assert call(api, "kf_fused_momentum", ctx, [[], [], []]) == 0
    api.destroy(*(("tensor", t) for own in handles for t in own))


def test_refused(api, ctx):
    given = made_tensors(api, ctx, (0, 0, 0))
    param, grad, velocity = ([t for t, _ in given[name]] for name in lists.LISTS)
    other = [api.create(ctx, (2, 3), 2), api.create(ctx, (3, 2), 0)]

    def fails(handles, code, *words, **more):
        api.fails(call(api, "kf_fused_momentum", ctx, handles, **more), code, *words)

    fails([param, grad, velocity], "ERROR_INVALID_SIZE", "count is -1", count=-1)
    fails(
        [param, [grad[0], None, *grad[2:]], velocity],
        "ERROR_NULL_POINTER",
        "grad[1] is NULL, expected a tensor",
    )
    fails(
        [param, grad, [other[0], *velocity[1:]]], "ERROR_DTYPE", "param[0] has f32, the others bf16"
    )
    fails(
        [param, [other[1], *grad[1:]], velocity],
        "ERROR_SHAPE",
        "grad[0] is [3, 2], expected [2, 3] beside param[0]",
    )
    fails(
        [param, grad, [velocity[0], *velocity[1:3], param[3]]],
        "ERROR_OVERLAP",
        "velocity[3] at 0x",
        "overlaps param[3]",
    )
    api.destroy(*(("tensor", t) for t in [*param, *grad, *velocity, *other]))


def test_by_name(api, ctx):
    """Calls by name and plans have no lists, and say so."""
    x = api.create(ctx, (4,), 0)
    held, scalars = lists.table([x, x, x]), (ctypes.c_double * 2)(0.1, 0.5)
    arguments = runtime_ops.Arguments(ctypes.addressof(held), None, ctypes.addressof(scalars))
    dtypes = (ctypes.c_int * 1)(0)
    op = api.op_lookup(b"momentum", 0, ctypes.addressof(dtypes), 1, api.device_type)
    assert op, api.detail
    why = "ERROR_UNSUPPORTED", "param is a tensor, and the op takes lists: call it by its own"
    api.fails(api.op_call(ctx, op, ctypes.addressof(arguments), None), *why)
    api.fails(api.plan_create(ctx, op, ctypes.addressof(arguments)), *why)
    api.destroy(("tensor", x))
