# SPDX-License-Identifier: Apache-2.0
"""Tests every C header: alone, twice, optimised, as C11, C++17 and C++20, with gcc and clang,
without a warning."""

import pathlib

import cases
import kflib
import pytest
from compilers import ALL_C, DIALECTS, STEMS, WARNINGS, fails, file_of, flags, passes, write
from kfgen.interfaces import runtime
from kfgen.render.render import parts


@pytest.mark.parametrize("dialect", cases.by_level(["c11"], DIALECTS))
def test_alone(dialect, include, tmp_path):
    """Compiles each header in a file of its own that contains nothing else."""
    compiler, *language = DIALECTS[dialect]
    sources = write(
        tmp_path, {f"{file_of(h)}.c": f'#include "{h}"\nextern int not_empty;\n' for h in ALL_C}
    )
    passes([compiler, *language, "-O2", *WARNINGS, "-fsyntax-only", *flags(include), *sources])


def test_every_generated_header_is_tested(include):
    made = {
        p.relative_to(include[1]).as_posix()
        for p in include[1].rglob("*.*h")
        if "user" not in p.parts
    }
    of = {
        ".h": STEMS,
        ".cuh": {
            pathlib.Path(f["header"]).name for f in kflib.on("cuda", kflib.manifest()["functions"])
        },
    }
    tested = {part for x, stems in of.items() for s in stems for part in parts(f"kf/ops/{s}{x}")}
    tested |= {
        "kf/ops/activations.h",
        "kf/ops/activations.cuh",
        "kf/kf.h",
        "kf/kf.cuh",
        "kf/any/activations.h",
        "kf/any/activations.cuh",
    }
    tested |= {f"{f['header']}{x}" for f in kflib.manifest()["any"] for x in (".h", ".cuh")}
    # Tests of tests/runtime compile these in the emulator.
    tested |= {
        f"{g['header']}.apart.cuh"
        for f in runtime.functions(kflib.manifest())
        if f.has_any_strides
        for g in f.any
    }
    assert made >= tested and {m for m in made if m.startswith(("kf/ops/", "kf/any/"))} <= tested


@pytest.mark.parametrize("dialect", cases.by_level(["c++17"], DIALECTS))
def test_twice(dialect, include, tmp_path):
    compiler, *language = DIALECTS[dialect]
    text = "".join(f'#include "{h}"\n' for h in ALL_C)
    [source] = write(tmp_path, {"twice.c": text + text + "extern int not_empty;\n"})
    passes([compiler, *language, *WARNINGS, "-fsyntax-only", *flags(include), source])


# ---- optimised, for warnings that only the optimiser gives


def caller(f, skip=()):
    """C function that calls f with NULL for the pointers in `skip`."""
    words, body = [], f["cpu_signature"].split("(", 1)[1].rsplit(")", 1)[0]
    for a in f["arguments"]:
        words.append("NULL" if a["name"] in skip else a["name"])
    unused = "".join(f"    (void){s};\n" for s in skip)
    head = f"int call_{f['cpu_name']}_{'_'.join(skip) or 'all'}({body})"
    return (
        f"{head};\n{head}\n{{\n{unused}    return (int){f['cpu_name']}({', '.join(words)});\n}}\n"
    )


PARTS = cases.by_level(1, 12)  # parts run in parallel: the whole takes six minutes


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("options", cases.by_level(["-O2"], ["-O2", "-O3 -march=native -fopenmp"]))
def test_no_warning_when_optimised(options, part, include, tmp_path):
    """The activation does not affect the optimiser's warnings about a schedule; NULL gradients
    do."""
    sources = {}
    for f in kflib.manifest()["functions"]:
        if f["activation"] in ("none", "relu") and f["dtypes"][0] in (
            ("f32", "bf16") if cases.LEVEL == 1 else ("f32", "bf16", "f16", "f64")
        ):
            stem = pathlib.Path(f["header"]).name
            if stem == "cast" and f["dtypes"][0] != "bf16":
                continue
            text = sources.setdefault(f"{stem}.c", f'#include "kf/ops/{stem}.h"\n')
            gradients = (
                [a["name"] for a in f["arguments"] if "kind" in a and a["role"] != "in"]
                if f["bwd"]
                else []
            )
            if (
                f["activation"] == "none"
                and f["dtypes"][0] == "bf16"
                and stem not in ("bias", "bias_act_add")
            ):
                # each variant is a compilation, and other dtypes have the same schedules
                gradients = []
            sources[f"{stem}.c"] = (
                text + caller(f) + "".join(caller(f, (g,)) for g in gradients if len(gradients) > 1)
            )
    wanted = (
        sources
        if cases.LEVEL > 1
        else {
            k: v
            for k, v in sources.items()
            if k
            in (
                "act.c",
                "add.c",
                "bias.c",
                "act_glu.c",
                "batch_norm.c",
                "bias_dropout_add.c",
                "prelu_bias.c",
                "cast.c",
            )
        }
    )
    paths = write(tmp_path, {name: wanted[name] for name in sorted(wanted)[part::PARTS]})
    passes(
        [
            "gcc",
            "-std=gnu11",
            *options.split(),
            "-Wall",
            "-Wextra",
            "-Werror",
            *flags(include),
            "-c",
            *paths,
        ],
        cwd=tmp_path,
    )


# ---- types

TYPES = {
    "dtype.h": """
    ASSERT(sizeof(kf_f16) == 2 && sizeof(kf_bf16) == 2 && sizeof(kf_i64) == 8, "sizes");
    ASSERT(KF_F32 == 0 && KF_F16 == 1 && KF_BF16 == 2 && KF_F64 == 3 && KF_I32 == 4 &&
        KF_I64 == 5, "numbers are ABI");
    """,
    "result.h": """
    ASSERT(KF_SUCCESS == 0 && KF_ERROR_NULL_POINTER == 1 && KF_ERROR_INVALID_SIZE == 2 &&
        KF_ERROR_INVALID_VALUE == 3, "ABI");
    ASSERT(KF_ERROR_OVERLAP == 4 && KF_ERROR_WORKSPACE == 5 && KF_ERROR_UNSUPPORTED == 6 &&
        KF_ERROR_NO_KERNEL_IMAGE == 7, "ABI");
    ASSERT(KF_ERROR_CUDA == 8 && KF_ERROR_OUT_OF_MEMORY == 9, "ABI");
    """,
}


@pytest.mark.parametrize("header", TYPES)
def test_types(tmp_path, include, header):
    for compiler, *language in DIALECTS.values():
        word = "static_assert" if "c++" in language else "_Static_assert"
        [source] = write(
            tmp_path,
            {"types.c": f"#include <kf/core/{header}>\n" + TYPES[header].replace("ASSERT", word)},
        )
        passes([compiler, *language, *WARNINGS, "-fsyntax-only", *flags(include), source])


@pytest.mark.parametrize("kind", ["kf_f16", "kf_bf16"])
def test_two_of_a_type_cannot_be_added_by_mistake(tmp_path, include, kind):
    [source] = write(
        tmp_path,
        {
            "sum.c": f"#include <kf/core/dtype.h>\nint f({kind} a, {kind} b) "
            f"{{ return (int)(a + b); }}\n"
        },
    )
    assert "invalid operands" in fails(
        ["gcc", "-std=c11", "-fsyntax-only", *flags(include), source]
    )
