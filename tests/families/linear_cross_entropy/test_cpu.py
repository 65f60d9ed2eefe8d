# SPDX-License-Identifier: Apache-2.0
"""Tests linear_cross_entropy in C with chunks of few rows: right results for any set of outputs, a
workspace of one chunk, and arguments checked before anything is written."""

import checks
import faults
import kflib
import numpy as np
import pytest
import refusals
import storage
import strided
from conftest import BUILD

SMALL = ("-DKFI_CPU_LOGITS_BYTES=1", "-DKFI_LOGITS_ROWS=64")  # rows of a chunk
FUNCTIONS = [
    f
    for f in kflib.manifest()["functions"]
    if f["family"] == "linear_cross_entropy" and f["dtypes"][0] in ("f32", "bf16")
]


@pytest.fixture(scope="module")
def memory():
    return checks.CpuMemory(1 << 24)


@pytest.fixture(scope="module")
def lib():
    return kflib.build("cpu", FUNCTIONS, BUILD / "logits", ("-O1", "-fopenmp", *SMALL))


def function(name):
    return next(f for f in FUNCTIONS if f["name"] == name)


@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f["name"])
def test_chunks(lib, memory, f):
    for sizes in ((63, 19, 7), (64, 19, 7), (65, 24, 16), (150, 33, 9), (192, 16, 24)):
        for values in ("normal", "wide", "special"):
            checks.run(lib, memory, f, sizes, values=values)
        checks.run(lib, memory, f, sizes, drop=("bias", "row_max", "log_sum"))
    if "dx" in (a["name"] for a in f["arguments"]):
        for drop in (("dx",), ("dweight",), ("dbias", "dloss"), ("dx", "dweight", "dbias")):
            checks.run(lib, memory, f, (150, 33, 9), drop=drop)


@pytest.mark.parametrize(
    "f", [f for f in FUNCTIONS if "i32" not in f["dtypes"]], ids=lambda f: f["name"]
)
def test_rows_that_lie_apart(lib, memory, f):
    """Strided rows give the same bits in every chunk, and with fewer rows than a chunk."""
    for turn, sizes in enumerate(((150, 33, 9), (65, 24, 16), (3, 19, 7))):
        strided.same(lib, memory, f, sizes, turn=turn)


def test_tensors_of_other_rows_may_not_lie_side_by_side(lib):
    """dx and weight do not overlap within the first chunk, but as whole tensors they do. The call
    must be refused before any chunk is written."""
    f = function("kf_linear_cross_entropy_with_grad_f32")
    layout = checks.Layout(lib, f, (130, 130, 8))
    call = strided.Call(layout, {"weight": [16], "dx": [16]})
    image = call.image
    base = image.ctypes.data + -image.ctypes.data % 256
    given = call.arguments(base)
    given["dx"] = given["weight"] + 8 * 4
    before = image.copy()
    assert lib.call(f, given) == refusals.OVERLAP and (image == before).all()
    assert "dx" in str(lib.detail) and "overlaps weight" in str(lib.detail), lib.detail


def test_a_row_is_that_of_a_call_of_its_own(lib, memory):
    """A row's results do not depend on its chunk."""
    f = function("kf_linear_cross_entropy_with_grad_f32")
    whole = checks.Layout(lib, f, (150, 33, 9))
    code, back = memory.run(whole.image, lambda base: lib.call(f, whole.given(base)))
    assert code == 0
    found = whole.outputs(back)
    for first, last in ((0, 40), (50, 90), (130, 150)):
        part = checks.Layout(lib, f, (last - first, 33, 9))
        for name in ("x", "label", "dloss"):
            part.put(name, np.ascontiguousarray(whole.data[name][first:last]))
        for name in ("weight", "bias"):
            part.put(name, whole.data[name])
        code, back = memory.run(part.image, lambda base, part=part: lib.call(f, part.given(base)))
        assert code == 0
        for name in ("loss", "row_max", "log_sum", "dx"):
            assert np.allclose(
                part.outputs(back)[name], found[name][first:last], 1e-5, 1e-6, equal_nan=True
            ), (first, name)


def test_without_rows_what_is_there_stays(lib, memory):
    """With no rows a gradient becomes beta times its old value, which is not read if beta is 0."""
    f = function("kf_linear_cross_entropy_with_grad_f32")
    for beta in (0.0, 0.5):
        call = checks.Layout(lib, f, (0, 5, 4))
        call.scalars["beta"] = beta
        for name in ("dweight", "dbias"):
            call.put(name, np.full(call.data[name].shape, 3.0 if beta else np.nan, np.float32))
        code, back = memory.run(call.image, lambda base, call=call: lib.call(f, call.given(base)))
        assert code == 0 and all(
            (call.outputs(back)[name] == 3.0 * beta).all() for name in ("dweight", "dbias")
        )


def test_the_workspace_is_that_of_a_chunk(lib):
    """The workspace does not grow with the rows and is far below the size of the logits. One byte
    less is refused, with the function's own name."""
    f = function("kf_linear_cross_entropy_with_grad_bf16")
    of = [lib.workspace_bytes(f, [rows, 5000, 16]) for rows in (64, 6400, 640000)]
    assert of[0] <= of[1] == of[2] < 2 * 6400 * 5000
    call = checks.Layout(lib, f, (150, 33, 9))
    base = call.image.ctypes.data + -call.image.ctypes.data % 256
    given = call.given(base) | {"workspace_bytes": call.workspace - 1}
    before = call.image.copy()
    assert lib.call(f, given) != 0 and (call.image == before).all()
    assert "kf_cpu_linear_cross_entropy_with_grad_bf16: workspace" in str(lib.detail), lib.detail


FAULTS = {
    "every chunk is of the first rows": (
        "kf/ops/linear_cross_entropy.kernels.h",
        r"x \+ kfi_first",
        "x + 0 * kfi_first",
        "kf_linear_cross_entropy_f32",
    ),
    "labels of the first rows": (
        "kf/ops/linear_cross_entropy.kernels.h",
        r"label \+ kfi_first",
        "label",
        "kf_linear_cross_entropy_f32",
    ),
    "the last chunk has the first one's rows": (
        "kf/core/linear_cross_entropy/linear_cross_entropy.h",
        r"rows % p\.chunk",
        "0",
        "kf_linear_cross_entropy_with_grad_f32",
    ),
    "gradients of weights of the last chunk alone": (
        "kf/ops/linear_cross_entropy_with_grad.kernels.h",
        r"kfi_first\s+\? 1\s+:\s+",
        "",
        "kf_linear_cross_entropy_with_grad_bf16_f32",
    ),
    "rows of the inputs' gradient lie as the inputs'": (
        "kf/ops/linear_cross_entropy_with_grad.kernels.h",
        r"kfi_layer_strides\.dx = strides->dx",
        "kfi_layer_strides.dx = strides->x",
        "kf_linear_cross_entropy_with_grad_f32",
    ),
}


def test_every_fault_has_its_place(include, tmp_path):
    for file, text, instead, _ in FAULTS.values():
        faults.plant(include, tmp_path, file, text, instead)


@pytest.mark.parametrize("what", faults.some(FAULTS))
def test_seeded_fault(include, memory, tmp_path, what):
    file, text, instead, name = FAULTS[what]
    f = function(name)
    lib = kflib.build(
        "cpu",
        [f],
        tmp_path / "lib",
        ("-O1", *SMALL),
        include=faults.plant(include, tmp_path, file, text, instead),
    )
    with pytest.raises(checks.Failure):
        checks.run(lib, memory, f, (150, 33, 9))
        strided.same(lib, memory, f, (65, 24, 16))


def test_gradients_of_bf16_over_many_chunks(lib, memory):
    """Each chunk's gradient is rounded: the error stays within one ulp of the sum per chunk."""
    f = function("kf_linear_cross_entropy_with_grad_bf16")
    got = checks.run(lib, memory, f, (640, 16, 8))
    assert np.isfinite(storage.to_float(got["dweight"], "bf16")).all()
