# SPDX-License-Identifier: Apache-2.0
"""The score of a user's own in docs/families/attention.md: checked, compiled by every compiler, and
computed on both backends and in Python."""

import re
import subprocess
import sys

import checks
import emulator
import gradient_calls
import kflib
import kfpython
import numpy as np
import nvrtc
import pytest
import toolkit
import user_ops
from gradient_calls import Case, GradientCall
from launcher import HEADS_FIRST, Call, close

pytestmark = [pytest.mark.check, pytest.mark.xdist_group("own score")]
PAGE = (kflib.ROOT / "docs/families/attention.md").read_text()
STEP = re.compile(r"<!-- (file: my_attention.toml|run|python) -->\n```\w+\n(.*?)```\n", re.S)
SMALL = "-DKF_HEAD_DIMS=1"  # kernels of the largest dimensions compile for minutes
CASES = [
    Case(queries=70, keys=101, heads=4, kv_heads=2, batch=2),
    Case(queries=33, keys=5, dim=24, dim_v=40, layout=HEADS_FIRST, heads=3),
    Case(queries=3, keys=65, dim=7, offset=1, scalars={"scale": -0.5}),
    Case(queries=5, keys=0, heads=2),
    Case(queries=9, keys=20, shard={"query_base": 7, "key_base": 3, "head_base": 2}, heads=2),
]


@pytest.fixture(scope="module")
def steps():
    """The page's {mark: text}."""
    found = {mark.split(":")[0]: text for mark, text in STEP.findall(PAGE)}
    assert set(found) == {"file", "run", "python"}, "the page has lost its marks"
    return found


@pytest.fixture(scope="module")
def own(steps, tmp_path_factory):
    """(its selection, its functions, include directories)."""
    folder = tmp_path_factory.mktemp("own_score")
    _, wanted, functions = user_ops.load(steps["file"], folder, "my_attention", ())
    return wanted, functions, [kflib.ROOT / "include", kflib.rendered(), folder]


def libraries(own, backend, folder):
    """Yields (library, memory) of each device of a backend."""
    _, functions, include = own
    if backend == "cpu":
        flags = ("-O1", "-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror")
        lib = kflib.build("cpu", functions, folder, flags, include=include)
        yield lib, checks.CpuMemory(1 << 24)
    elif backend == "emu":
        lib = emulator.build(functions, folder, include=include, more=(SMALL,))
        emulated = emulator.Emulator(lib)
        for hopper in (0, 1):
            emulated.set(hopper=hopper)
            yield lib, emulator.Memory(emulated, ((emulator.RANDOM, 1),), 1 << 24)
    else:
        hopper = kflib.capability() == (9, 0)
        own_code = "-gencode=arch=compute_90a,code=sm_90a" if hopper else "-arch=native"
        flags = ("-O3", own_code, SMALL)
        lib = kflib.build("cuda", functions, folder, flags, include=include)
        yield lib, checks.CudaMemory(1 << 24)


BACKENDS = {"cpu": True, "emu": bool(toolkit.include()), "cuda": kflib.has_gpu()}


@pytest.mark.parametrize("backend", [b for b in BACKENDS if BACKENDS[b]])
def test_numbers(own, backend, tmp_path):
    for lib, memory in libraries(own, backend, tmp_path):
        for f in own[1]:
            for case in CASES:
                check(lib, memory, f, case)


def check(lib, memory, f, case):
    decay = 0.02 * np.arange(case.heads, dtype=float)
    case.more = {"decay": decay}
    i = np.arange(case.queries)[:, None] + case.shard.get("query_base", 0)
    j = np.arange(case.keys)[None] + case.shard.get("key_base", 0)
    call = (GradientCall if f["bwd"] else Call)(f, case)  # rounds decay
    scale, fall = case.scalars["scale"], decay[:, None, None] * np.abs(i - j)

    def score(dots):
        return scale * dots - fall

    if not f["bwd"]:
        call.check(lib, memory, score, None)
        return
    call.forward(score, None, {})
    got = call.run(lib, memory)
    want = call.wanted(score, None, lambda dots: np.full(dots.shape, scale), {})
    want["ddecay"] = -(want["dbias"] * np.abs(i - j)).sum((0, 2, 3))
    assert set(got) == {n for n in ("dq", "dk", "dv", "ddecay") if want[n].size}
    for name, x in got.items():
        limit = gradient_calls.TOLERANCE[f["dtypes"][0]]
        close((f["name"], case, name), x, want[name], limit)


@pytest.mark.skipif(not toolkit.nvcc(), reason="no nvcc")
def test_nvcc(own, tmp_path):
    """Every function compiles for Hopper, with the kernels of all schedules."""
    _, functions, include = own
    both = [f for f in functions if f["dtypes"] == ["bf16"]]
    assert [f["bwd"] for f in both] == [False, True]
    [text] = [t for t in kflib.sources("cuda", both).values() if "attention" in t]
    (tmp_path / "own.cu").write_text(text)
    command = [toolkit.nvcc(), "-arch=sm_90a", "-Werror", "all-warnings", SMALL, "-cubin"]
    command += [*(f"-I{d}" for d in include), str(tmp_path / "own.cu")]
    made = subprocess.run(
        [*command, "-o", str(tmp_path / "own.cubin")], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    names = (tmp_path / "own.cubin").read_bytes()
    for schedule in (b"hopper", b"mma", b"simt"):
        assert schedule in names


@pytest.mark.skipif(not (toolkit.nvrtc() and toolkit.include()), reason="no NVRTC")
def test_nvrtc(own):
    wanted, _, include = own
    header = "#include <kf/my_attention.cuh>\n"
    kernels = [k for k in wanted.all_kernels() if k.dtypes[0] in ("bf16", "f32")]
    asked = [name for k in kernels for name in nvrtc.kernels_of(k)]
    _, lowered, log = nvrtc.compile_text(header, asked, include, options=nvrtc.quick())
    assert sorted((k.dtypes[0], k.bwd) for k in kernels) == [
        (dtype, bwd) for dtype in ("bf16", "f32") for bwd in (False, True)
    ]
    assert len(set(lowered)) == len(set(asked)) and "warning" not in log


def test_the_commands_of_the_page(steps, tmp_path):
    (tmp_path / "my_attention.toml").write_text(steps["file"])
    for line in steps["run"].splitlines():
        words = line.split()
        assert words[0] == "gen/bin/kfgen"
        program = [sys.executable, kflib.ROOT / words[0], *words[1:]]
        done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    for name in ("cuh", "h"):
        assert (tmp_path / f"prefix/include/kf/my_attention.{name}").exists()


MORE = """
i = np.arange(5)
score = np.einsum("bihd,bjhd->bhij", q, q) * 8**-0.5
score = score - decay[:, None, None] * abs(i[:, None] - i)
weight = np.exp(score)
weight /= weight.sum(-1, keepdims=True)
want = np.einsum("bhij,bjhd->bihd", weight, q)
assert np.abs(out - want).max() < 1e-5
import torch
tensors = [torch.from_numpy(x) for x in (q, q, q, decay)]
tensors = [x.requires_grad_() for x in tensors]
found = kf.ops.decay_attention(*tensors, scale=8**-0.5)
up = torch.randn_like(found)
mine = torch.autograd.grad(found, tensors, up)
wide = query, key, value, rate = [x.detach().double().requires_grad_() for x in tensors]
exact = torch.einsum("bihd,bjhd->bhij", query, key) * 8**-0.5
exact = exact - rate[:, None, None] * torch.from_numpy(abs(i[:, None] - i))
exact = torch.einsum("bhij,bjhd->bihd", exact.softmax(-1), value)
for own, theirs in zip(mine, torch.autograd.grad(exact, wide, up.double()), strict=True):
    assert float((own - theirs).abs().max()) < 1e-5
found = found.detach()
assert np.abs(found.numpy() - want).max() < 1e-5
assert hasattr(torch.ops.kf, "decay_attention")
half = kf.ops.decay_attention(*(x.detach().bfloat16() for x in tensors), scale=8**-0.5)
assert np.abs(half.float().numpy() - want).max() < 0.05
"""


def test_python(steps, tmp_path):
    """The program of the page, from a folder with the file, and PyTorch's tensors."""
    pytest.importorskip("torch")
    (tmp_path / "my_attention.toml").write_text(steps["file"])
    program = f"import os\nos.chdir({str(tmp_path)!r})\n{steps['python']}{MORE}"
    assert kfpython.python(program).strip() == "(2, 5, 4, 8)"
