# SPDX-License-Identifier: Apache-2.0
"""Gradient of an embedding table: rows with equal index must be summed in the order of rows, to the
bit, on both backends, and a table row without summands must become beta times its old value."""

import checks
import emulator
import kflib
import numpy as np
import pytest
import toolkit
from conftest import BUILD

F = next(f for f in kflib.manifest()["functions"] if f["name"] == "kf_embedding_bwd_f32_i32")
ROWS, COLS, VOCAB = 700, 12, 130  # several tiles of the sort, indices of two digits


@pytest.fixture(
    params=[
        "cpu",
        pytest.param(
            "emu", marks=pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")
        ),
    ]
)
def backend(request):
    if request.param == "cpu":
        return kflib.build(
            "cpu", [F], BUILD / "lookup", ("-O1", "-ffp-contract=off")
        ), checks.CpuMemory(1 << 22)
    lib = emulator.build([F], BUILD / "lookup")
    return lib, emulator.Memory(emulator.Emulator(lib), size=1 << 22)


def run(backend, index, dout, beta):
    lib, memory = backend
    call = checks.Layout(lib, F, (len(index), COLS, VOCAB))
    call.put("index", index)
    call.put("dout", dout)
    call.scalars |= {"beta": beta, "scale": 1.0}
    old = np.random.default_rng(3).standard_normal((VOCAB, COLS)).astype(np.float32)
    call.put("dweight", old)
    memory.spans = call.spans()
    code, back = memory.run(call.image, lambda base: lib.call(F, call.given(base)))
    assert code == 0, lib.detail
    return old, call.outputs(back)["dweight"]


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_in_the_order_of_the_rows(backend, beta):
    rng = np.random.default_rng(7)
    index = rng.choice(
        [0, 1, 64, 65, 128, 129, F["scalars"]["padding_idx"], -1, VOCAB], ROWS
    ).astype(np.int32)
    dout = (rng.standard_normal((ROWS, COLS)) * np.exp2(rng.integers(-20, 20, (ROWS, 1)))).astype(
        np.float32
    )
    old, got = run(backend, index, dout, beta)
    want = np.zeros((VOCAB, COLS), np.float32)
    for row in np.flatnonzero(
        (index >= 0) & (index < VOCAB) & (index != F["scalars"]["padding_idx"])
    ):
        want[index[row]] += dout[row]
    want = want + np.float32(beta) * old if beta else want
    assert want.tobytes() == got.tobytes()
    others = dout[rng.permutation(ROWS)]  # another order changes the sum
    assert not np.array_equal(
        np.add.reduce(dout[index == 1], dtype=np.float32),
        np.add.reduce(others[index == 1], dtype=np.float32),
    )


def test_no_rows(backend):
    old, got = run(backend, np.zeros(0, np.int32), np.zeros((0, COLS), np.float32), 0.5)
    assert np.array_equal(got, np.float32(0.5) * old)
