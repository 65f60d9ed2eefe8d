# SPDX-License-Identifier: Apache-2.0
"""Tests that NVRTC compiles every kernel of every function and finds it by name. It needs no GPU,
only the include directories of CUDA and kf. Level 2 takes every op and activation in two tuples of
dtypes. Headers for the host must say so."""

import re

import cases
import kflib
import nvrtc
import pytest
import toolkit
from kfgen.entries import spec
from kfgen.render.render import Selection

pytestmark = pytest.mark.skipif(not (toolkit.nvrtc() and toolkit.include()), reason="no NVRTC")
SELECTION = Selection(spec.load())
PROGRAMS = {}  # one per op and dtypes: forward and backward, with every activation
for kernel in [k for k in SELECTION.all_kernels() if "cuda" in k.backends]:
    PROGRAMS.setdefault(f"{nvrtc.header_of(kernel)}-{'_'.join(kernel.dtypes)}", []).append(kernel)
OF_HEADER = {}  # {header: its programs}
for _program in PROGRAMS:
    OF_HEADER.setdefault(_program.split("-")[0], []).append(_program)
# Level 1: one tuple of dtypes per op, in turn. Level 2: two. Level 3: all, eight seconds each.
CHOSEN = [found[i % len(found)] for i, found in enumerate(OF_HEADER.values())]
if cases.LEVEL > 1:
    CHOSEN += [
        found[(i + 1) % len(found)] for i, found in enumerate(OF_HEADER.values()) if len(found) > 1
    ]
    CHOSEN = CHOSEN if cases.LEVEL < 3 else PROGRAMS
CORE = kflib.ROOT / "include/kf/core"
# Headers for the host: they include host.h first.
HOST = sorted(
    p.relative_to(CORE).as_posix()
    for p in CORE.rglob("*.*h")
    if re.search('\n#include "kf/(core/host|rope_table)\\.h"\n', p.read_text())
)


def expressions_of(program):
    return [e for k in PROGRAMS[program] for e in nvrtc.kernels_of(k)]


@pytest.mark.parametrize(
    "arch",
    [nvrtc.ARCH] if cases.LEVEL < 3 else ["sm_75", "sm_80", "sm_90", "sm_90a", "sm_100", "sm_120"],
)
@pytest.mark.parametrize("program", CHOSEN)
def test_every_kernel(program, arch, include):
    asked = expressions_of(program)
    _, lowered, log = nvrtc.compile_text(
        f"#include <{program.split('-')[0]}>\n", asked, include, arch, nvrtc.quick()
    )
    assert len(set(lowered)) == len(set(asked)) and "warning" not in log, log[:2000]


def test_no_function_is_left_out():
    """The requested kernels include one for every launcher of the manifest."""
    asked = {e for p in PROGRAMS for e in expressions_of(p)}
    kernels = [k for k in SELECTION.all_kernels() if "cuda" in k.backends]
    launchers = {
        launcher.name: nvrtc.source.kernel_names(launcher)
        for k in kernels
        for launcher in k.launchers
    }
    assert set(launchers) == {f["name"] for f in kflib.on("cuda", kflib.manifest()["functions"])}
    assert all(found and asked.issuperset(found[:1]) for found in launchers.values())


@pytest.mark.parametrize("standard", cases.by_level(["c++17"], ["c++17", "c++20"]))
def test_the_umbrella_and_its_device_functions(include, standard):
    """A user's kernel calls every activation, in both types."""
    body = ""
    for a in kflib.manifest()["activations"]:
        extra = "".join(f", (T){value!r}" for value in a["scalars"].values())
        if a["name"] != "none":
            body += (
                f"    y[i] += kf_{a['name']}(x[i]{extra}) + kf_{a['name']}_bwd(x[i], "
                f"y[i]{extra});\n"
            )
    text = "#include <kf/kf.cuh>\n#include <kf/kf.cuh>\n"
    text += (
        "template <class T> __global__ void mine(const T *x, T *y)\n"
        f"{{\n    int i = threadIdx.x;\n{body}}}\n"
    )
    asked = ["mine<float>", "mine<double>"]
    _, _, log = nvrtc.compile_text(text, asked, include, options=[f"-std={standard}"])
    assert "warning" not in log, log[:2000]
    assert body.count("_bwd(") == len(kflib.manifest()["activations"]) - 1


@pytest.mark.parametrize(
    "header", ["kf/kf.h", "kf/ops/add.h", "kf/ops/activations.h", *(f"kf/core/{h}" for h in HOST)]
)
def test_headers_for_the_host_say_so(include, header):
    with pytest.raises(nvrtc.NvrtcError) as caught:
        nvrtc.compile_text(f"#include <{header}>\n", include=include)
    first = next(line for line in str(caught.value).splitlines() if "error" in line)
    assert "kf: this header is for the host" in first, first


@pytest.mark.parametrize(
    "header",
    sorted(
        found
        for found in (p.relative_to(CORE).as_posix() for p in CORE.rglob("*.*h"))
        if found not in (*HOST, "host.h")
    ),
)
def test_headers_of_core(include, header):
    """Includes each header that is not in HOST, twice."""
    nvrtc.compile_text(
        f"#include <kf/core/{header}>\n#include <kf/core/{header}>\n", include=include
    )


def test_what_is_wrong_is_seen(include):
    """These tests can fail: on a kernel that does not exist, and on one that does not compile."""
    with pytest.raises(nvrtc.NvrtcError):
        nvrtc.compile_text("#include <kf/ops/add.cuh>\n", ["kfk_add_f32<1, 3, 1>"], include)
    with pytest.raises(nvrtc.NvrtcError):
        nvrtc.compile_text("#include <kf/ops/add.cuh>\n", ["kfk_addd_f32<1, 4, 1>"], include)
