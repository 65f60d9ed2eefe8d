# SPDX-License-Identifier: Apache-2.0
"""Header and files of launchers with C linkage: kf_launchers.h alone and with kf.h and kf.cuh,
which .cu file defines a function, and the files of a selection and of a user's spec."""

import pathlib
import re
import sys

import cases
import kflib
import pytest
from conftest import ROOT
from kfgen.cli import main
from kfgen.model.dtypes import DTYPES
from kfgen.render import launchers
from launcher_builds import (
    AFTER,
    BOTH_BACKENDS,
    DIALECTS,
    NVCC,
    SUBSET,
    VERSION,
    WARNINGS,
    compile_cuda,
    fails,
    needs_nvcc,
    of_a_user,
    passes,
    symbols,
)


@pytest.fixture(scope="module")
def own(once):
    """Include directories of a user's spec, beside headers as `make install` leaves them."""
    return once("launchers of a user", of_a_user)


def test_each_function_is_in_one_file(manifest):
    """The file of its first dtype must define each function, and no other; the header declares it
    with the manifest's signature."""
    files = kflib.files()
    # Parameters of a long name begin on the next line.
    declared = " ".join(files["kf/kf_launchers.h"].split()).replace("( ", "(")
    made = {pathlib.Path(p).stem: symbols(t) for p, t in files.items() if p.endswith(".cu")}
    assert set(made) == {f"kf_launchers_{d}" for d in DTYPES}
    wanted = {
        stem: {f"{stem}_{what}" for what in ("abi_version", "error_string", "error_detail")}
        for stem in made
    }
    assert [f["name"] for f in manifest["functions"] if f["launchers"]] == [
        f["name"] for f in kflib.on("cuda", manifest["functions"])
    ]
    for f in kflib.on("cuda", manifest["functions"]):
        wanted[f["launchers"]] |= {f["name"]} | ({f["workspace"]} if f["workspace"] else set())
        assert f["launchers"] == f"kf_launchers_{f['dtypes'][0]}"
        c = f["signature"].replace("cudaStream_t stream", "struct CUstream_st *stream")
        assert f"{c} KFI_LINKED({f['name']});" in declared
    for stem, names in made.items():
        assert len(names) == len(set(names)) and set(names) == wanted[stem]
    assert declared.count("KFI_LINKED(") == len(set().union(*wanted.values())) - 3 * len(made)


def test_explain_says_where(capsys):
    assert main(["explain", "kf_bias_relu_bwd_bf16"]) == 0
    assert "kf/kf_launchers_bf16.cu has it with C linkage" in capsys.readouterr().out
    assert main(["explain", "kf_cpu_bias_relu_bwd_bf16"]) == 0
    assert "kf_launchers" not in capsys.readouterr().out


def test_a_selection_s_files(tmp_path):
    assert main(["render", "--out", str(tmp_path), *SUBSET]) == 0
    assert {p.name for p in (tmp_path / "kf").glob("kf_launchers*")} == {
        "kf_launchers.h",
        "kf_launchers_f32.cu",
        "kf_launchers_f16.cu",
    }
    assert "kf_mul" not in (tmp_path / "kf/kf_launchers.h").read_text()


def test_a_user_s_spec_gets_its_own(own):
    """A user's spec gets launchers of its own functions only; the installed files define the
    built-in ones."""
    names = symbols((own[1] / "kf/kf_my_launchers_f32.cu").read_text())
    assert {
        "kf_shift_f32",
        "kf_shift_gelu_bwd_f32",
        "kf_shift_cubed_f32",
        "kf_add_cubed_f32",
        "kf_bias_cubed_bwd_f32",
        "kf_shift_bwd_f32_workspace_bytes",
        "kf_my_launchers_f32_abi_version",
    } <= set(names)
    assert not {
        "kf_add_relu_f32",
        "kf_bias_bwd_f32_workspace_bytes",
        "kf_launchers_f32_abi_version",
    } & set(names)
    assert launchers.declared("my") != launchers.declared()


@pytest.mark.level(2)
@needs_nvcc
@pytest.mark.parametrize("dtype", DTYPES if cases.LEVEL > 2 else ["i32"])
def test_every_launcher_compiles(dtype, include, manifest, tmp_path):
    """Level 3 compiles all dtypes, which takes seven minutes."""
    source = include[1] / f"kf/kf_launchers_{dtype}.cu"
    passes(
        NVCC,
        "-O3",
        "-arch=sm_90",
        "-Werror",
        "all-warnings",
        *(f"-I{d}" for d in include),
        "-c",
        source,
        "-o",
        tmp_path / "all.o",
    )
    defined = set(re.findall(r" T (kf_\w+)", passes("nm", tmp_path / "all.o")))
    for f in manifest["functions"]:
        if f["dtypes"][0] == dtype:
            assert {f["name"], f"{f['name']}_abi{VERSION}"} <= defined


def test_ctypes_types_are_those_of_the_manifest(manifest):
    """kflib.py, or a user, must be able to pass every argument: a number of a known type, or an
    address of such numbers, of bytes, or of a struct whose fields the manifest lists."""
    for f in manifest["functions"]:
        for a in f["arguments"]:
            if "ctype" not in a or a["ctype"] in kflib.CTYPES:
                continue
            pointed = a["ctype"].removeprefix("const ").removesuffix(" *")
            assert a["ctype"].endswith(" *"), (f["name"], a["ctype"])
            assert pointed in {"void", *kflib.CTYPES} or (
                pointed == a.get("struct") and a["fields"] and a["memory"] == "host"
            ), (f["name"], a["ctype"])


# ---- the header


@pytest.mark.parametrize("dialect", cases.by_level(["c11"], DIALECTS))
def test_header_alone_and_beside_kf_h(dialect, include, tmp_path):
    """kf_launchers.h and kf.h must compile together in any order: a C file may use both backends. A
    name with two meanings would fail."""
    compiler, *language = DIALECTS[dialect]
    text = "\nextern int not_empty;\n"
    ours, cpu = "#include <kf/kf_launchers.h>\n", "#include <kf/kf.h>\n"
    orders = cases.by_level(
        [ours + ours + cpu],
        [ours + ours, ours + cpu, cpu + ours] if dialect == "c11" else [ours + cpu],
    )
    for i, first in enumerate(orders):
        (tmp_path / f"{i}.c").write_text(first + text)
    sources = [tmp_path / f"{i}.c" for i in range(len(orders))]
    passes(compiler, *language, *WARNINGS, "-fsyntax-only", *(f"-I{d}" for d in include), *sources)


@pytest.mark.parametrize("dialect", cases.by_level(["c11"], ["c11", "c++17"]))
def test_one_name_one_thing(dialect, include, tmp_path):
    """A name with a dtype suffix is a launcher, an activation on one double ends with `double`.
    Confusing them would call the wrong backend."""
    (tmp_path / "both.c").write_text(BOTH_BACKENDS)
    compiler, *language = DIALECTS[dialect]
    passes(
        compiler,
        *language,
        *WARNINGS,
        *(f"-I{d}" for d in include),
        "-c",
        tmp_path / "both.c",
        "-o",
        tmp_path / "both.o",
    )
    undefined = passes("nm", "-u", tmp_path / "both.o")
    assert re.findall(r"\bkf_\w+", undefined) == [f"kf_gelu_f64_abi{VERSION}"]


@needs_nvcc
@pytest.mark.parametrize("first", cases.by_level(["ops/add.cuh"], ["kf.cuh", "ops/add.cuh"]))
def test_after_kf_cuh_it_declares_nothing(first, include, tmp_path):
    """After kf.cuh the call must be inlined: no undefined symbol may be left."""
    (tmp_path / "after.cu").write_text(AFTER.format(first=first))
    passes(*compile_cuda(include, tmp_path / "after.cu"))
    assert "kf_add_relu_f32" not in passes("nm", "-u", tmp_path / "after.o")


@needs_nvcc
def test_before_kf_cuh_it_is_refused(include, own, tmp_path):
    for text, header in (
        ("#include <kf/kf_launchers.h>\n#include <kf/ops/add.cuh>\n", "kf_launchers.h"),
        ("#include <kf/kf_my_launchers.h>\n#include <kf/user/my/shift.cuh>\n", "kf_my_launchers.h"),
    ):
        (tmp_path / "before.cu").write_text(text)
        output = fails(*compile_cuda([*include, own[1]], tmp_path / "before.cu", "-E"))
        assert "#error" in output and header in output and " after" in output
    (tmp_path / "fine.cu").write_text(
        "#include <kf/kf_launchers.h>\n#include <kf/ops/activations.cuh>\n"
        "__global__ void own(float *x) { *x = kf_gelu(*x); }\n"
        "kf_result_t call(const kf_f16 *a, kf_f16 *b, cudaStream_t s)\n"
        "{\n    return kf_relu_f16(a, b, 5, s);\n}\n"
    )
    passes(*compile_cuda(include, tmp_path / "fine.cu"))
    assert f"kf_relu_f16_abi{VERSION}" in passes("nm", "-u", tmp_path / "fine.o")


def test_refused_with_nvrtc(include, tmp_path):
    (tmp_path / "rtc.cpp").write_text("#include <kf/kf_launchers.h>\n")
    output = fails(
        "g++",
        "-D__CUDACC_RTC__",
        "-fsyntax-only",
        *(f"-I{d}" for d in include),
        tmp_path / "rtc.cpp",
    )
    assert "is for the host" in output


@pytest.mark.level(2)
def test_make_install(tmp_path):
    """`make install` must install the header and the .cu files that docs/launchers.md uses."""
    passes("make", "-C", ROOT, "install", f"PREFIX={tmp_path}", f"PYTHON={sys.executable}")
    made = {p.name for p in (tmp_path / "include/kf").glob("kf_launchers*")}
    assert made == {"kf_launchers.h", *(f"kf_launchers_{d}.cu" for d in DTYPES)}
