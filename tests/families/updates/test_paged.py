# SPDX-License-Identifier: Apache-2.0
"""Paged operands: the accessors of caches of blocks in C, in the emulation and by NVRTC, and what
contract and manifest say of them. No function of kf has one yet.
"""

import ctypes
import subprocess

import emulator
import kflib
import lists
import numpy as np
import nvrtc
import pytest
import toolkit
from kfgen import families
from kfgen.entries import spec
from kfgen.families.family import Family
from kfgen.interfaces import manifest
from kfgen.model import contract, derive
from kfgen.model.kernel import Kernel
from kfgen.model.kinds import Kind

BLOCKS, WIDTH = 7, 5
OUTSIDE = (-1, BLOCKS, 70000, -(2**31), 2**31 - 1)  # block numbers that no cache has
EMULATED = pytest.param(
    "emu", marks=pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")
)


@pytest.fixture(scope="module", params=["cpu", EMULATED])
def accessors(request, tmp_path_factory):
    library = tmp_path_factory.mktemp("paged") / "libpaged.so"
    core = f"-I{kflib.ROOT}/include"
    if request.param == "cpu":
        strict = ("-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror")
        command = ["gcc", "-std=c11", *strict, core, f"{lists.FOLDER}/paged.c", "-lm"]
    else:
        own = [f"-I{emulator.HERE}/include", f"-I{emulator.HERE}", core]
        runtime = emulator.runtime(kflib.ROOT / "build/tests/emu", "plain")
        command = ["g++", "-std=c++17", *own, *emulator.flags("plain"), f"{lists.FOLDER}/paged.cpp"]
        command.append(str(runtime))
    subprocess.run([*command, "-shared", "-fPIC", "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def call(function, table, rows, cache, values, first, count):
    sequences, pages = table.shape
    number = ctypes.c_int64
    pointers = [ctypes.c_void_p(x.ctypes.data) for x in (table, cache, values)]
    sizes = [number(n) for n in (sequences, pages, rows, BLOCKS)]
    last = [number(n) for n in (first, count, WIDTH)]
    assert function(pointers[0], *sizes, *pointers[1:], *last) == 0


def cases(rows):
    """Draws a shuffled table, some of whose numbers are out of range, and a cache."""
    rng = np.random.default_rng(rows)
    table = rng.permutation(BLOCKS)[:6].reshape(2, 3).astype(np.int32)
    table[rng.integers(2), rng.integers(3)] = rng.choice(OUTSIDE)
    return table, rng.standard_normal((BLOCKS, rows, WIDTH)).astype(np.float32), rng


def expected(table, rows, s, r):
    """Returns (block, row of the block), or None."""
    if not 0 <= r < table.shape[1] * rows:
        return None
    block = table[s, r // rows]
    return (block, r % rows) if 0 <= block < BLOCKS else None


@pytest.mark.parametrize("rows", [1, 3, 16])
@pytest.mark.parametrize("first", [0, -2, 1])
def test_rows(accessors, rows, first):
    """Every row is found; rows before and behind a sequence, and those of blocks that are not in
    the cache, are NaN, and are not written."""
    table, cache, rng = cases(rows)
    count = table.shape[1] * rows + 4
    out = np.zeros((2, count, WIDTH), np.float32)
    call(accessors.kft_gather, table, rows, cache, out, first, count)
    new = rng.standard_normal(out.shape).astype(np.float32)
    written, want = cache.copy(), cache.copy()
    call(accessors.kft_scatter, table, rows, written, new, first, count)
    lost = 0
    for s in range(2):
        for i in range(count):
            at = expected(table, rows, s, first + i)
            if at is None:
                assert np.isnan(out[s, i]).all()
                lost += 1
            else:
                assert (out[s, i] == cache[at]).all()
                want[at] = new[s, i]
    assert (written == want).all() and lost >= 8 + rows - max(first, 0)


@pytest.mark.skipif(not (toolkit.nvrtc() and toolkit.include()), reason="no NVRTC")
def test_nvrtc():
    text = """
    #include <kf/core/paged.h>
    extern "C" __global__ void read(kfi_pages p, float *cache, float *out)
    {
        const float *row = (const float *)kfi_page_at(&p, cache, blockIdx.x, threadIdx.x, 4);
        out[threadIdx.x] = row ? *row : 0;
    }"""
    _, _, log = nvrtc.compile_text(text, (), [kflib.ROOT / "include"])
    assert "warning" not in log, log


class PagedKernel(Kernel):
    form = "paged"
    cuda = c = None

    def _build(self):
        self.graph, env, _ = self.family.graph(self.op)
        table = self.op.operands[1].name
        self.inputs = [
            self.tensor_of(
                o,
                "input",
                "inout" if o.kind == "cache" else "in",
                exprs=[env["cache_out"]] if o.kind == "cache" else [],
                pages=table if o.kind in self.family.paged else "",
            )
            for o in self.op.operands
        ]
        self.outputs, self.roots = [], [env["cache_out"]]
        self.streams, self.keeps, self.scalars = self.inputs, False, list(self.op.scalars)


class Paged(Family):
    name, kernel = "paged", PagedKernel
    forms = {
        "paged": {
            "elem": "blocks, page, dim",
            "cache": "blocks, page, dim",
            "table": "sequences, pages",
        }
    }
    sizes = {"paged": "blocks, page, dim, sequences, pages"}
    kinds = (Kind("cache", whole=True), Kind("table", vectors=False, index=True))
    paged, in_place, fields = {"cache": "table"}, ("cache",), ("updates",)

    def dtypes(self, kind, grad):
        return ("i32",) if kind == "table" else ()

    def graph(self, op):
        return derive.update_graph(op)


ENTRY = """
[op.scale_cache]
family = "paged"
brief = "cache * scale"
operands = { cache = "cache", block_table = { kind = "table", dtype = "i32" } }
scalars = { scale = 2 }
updates = { cache = "cache * scale" }
refs = { cache = "cache * scale" }
"""


def loaded(monkeypatch, folder, text):
    monkeypatch.setitem(families.FAMILIES, "paged", Paged())
    (folder / "mine.toml").write_text(text)
    return spec.load([folder / "mine.toml"])


def test_model(monkeypatch, tmp_path):
    op = loaded(monkeypatch, tmp_path, ENTRY).ops["scale_cache"]
    k = Paged().forward(op, {"T": "bf16"})
    [launcher] = k.launchers
    assert launcher.cpu_parameters == (
        "kf_bf16 *cache, const int32_t *block_table, int64_t blocks, int64_t page, int64_t dim, "
        "int64_t sequences, int64_t pages, float scale"
    )
    text = " ".join(" ".join(contract.lines(k)).split())
    assert (
        "i/o cache: [blocks, page, dim] bf16; read, then replaced by cache_out; row r of sequence "
        "s is row r % page of block block_table[s][r / page]"
    ) in text
    assert "in block_table: [sequences, pages] i32" in text
    found = manifest.tensor(k, k.inputs[0], launcher.act, None)
    outside = {"table": "block_table", "rows": "page", "below": "blocks", "outside": "NaN"}
    assert found["pages"] == outside and found["role"] == "inout"
    assert manifest.tensor(k, k.inputs[1], launcher.act, None)["pages"] is None
    assert k.renamed.inputs[0].pages == k.renamed.inputs[1].name == "kfi_block_table0"


def test_a_cache_has_one_table(monkeypatch, tmp_path):
    text = ENTRY.replace(', block_table = { kind = "table", dtype = "i32" }', "")
    with pytest.raises(spec.SpecError, match='has 0 operands of kind "table" beside a "cache"'):
        loaded(monkeypatch, tmp_path, text)
