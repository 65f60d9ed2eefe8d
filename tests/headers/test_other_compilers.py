# SPDX-License-Identifier: Apache-2.0
"""Tests the C headers with clang, and with flags that change arithmetic: results are right, or an
#error says what to do."""

import platform
import shutil

import cases
import checks
import kflib
import pytest
import user_ops
from compilers import fails, flags, passes, write

CLANG = pytest.mark.skipif(not shutil.which("clang"), reason="no clang")
NAMES = {
    f"kf_cpu_{name}"
    for name in (
        "gelu_f32",
        "tanh_f32",
        "softplus_f32",
        "mish_bwd_f32",
        "elu_f32",
        "silu_f16",
        "gelu_bf16",
        "bias_gelu_bwd_f32",
        "softmax_f32",
        "layer_norm_f32",
        "layer_norm_bwd_f32",
        "sum_f32",
        "cast_f64_f16",
        "cast_i64_f32",
        "bce_with_logits_f64",
    )
}
# Primitives that no function of kf uses.
OWN = """
[op.waves]
brief = "sin(x) * cos(y) + log(abs(x) + 1) * sqrt(abs(y))"
operands = { x = "elem", y = "elem" }
expr = "sin(x) * cos(y) + log(abs(x) + 1) * sqrt(abs(y) + 1)"
ref = "np.sin(x) * np.cos(y) + np.log(np.abs(x) + 1) * np.sqrt(np.abs(y) + 1)"
"""
ROUNDS = (
    "-funsafe-math-optimizations",
    "-fassociative-math -fno-signed-zeros -fno-trapping-math",
    "-ffast-math -DKF_ALLOW_FAST_MATH",
)
BUILDS = [
    pytest.param("clang", "-O2", marks=CLANG),
    pytest.param("clang", f"-O2 {ROUNDS[0]}", marks=CLANG),
] + cases.by_level(
    [],
    [
        *(pytest.param("clang", f"-O2 {options}", marks=CLANG) for options in ROUNDS[1:]),
        pytest.param("clang", "-O3 -march=native", marks=CLANG),
        ("gcc", "-O2 -ffast-math -fno-associative-math -DKF_ALLOW_FAST_MATH"),
    ],
)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Returns (spec file, its functions, folder of their headers)."""
    folder = tmp_path_factory.mktemp("own")
    path, _, functions = user_ops.load(OWN, folder)
    return (
        path,
        [f for f in functions if f["op"] == "waves" and f["dtypes"][0] in ("f32", "bf16")],
        folder,
    )


@pytest.mark.parametrize(("compiler", "options"), BUILDS)
def test_numbers(compiler, options, include, own, tmp_path):
    """Results are right, and there is no warning: kf is included as a system path, so that users
    see only warnings about their own code."""
    path, waves, folder = own
    functions = [f for f in kflib.manifest()["functions"] if f["cpu_name"] in NAMES]
    assert len(functions) == len(NAMES)
    headers = [*include, folder]
    warnings = [
        "-Wall",
        "-Wextra",
        "-Werror",
        *(word for d in headers for word in ("-isystem", str(d))),
    ]
    lib = kflib.build(
        "cpu",
        functions + waves,
        tmp_path,
        [*options.split(), *warnings],
        compiler=compiler,
        include=headers,
    )
    memory = checks.CpuMemory()
    for f in functions + waves:
        sizes = cases.of_form(f, {"flat": (1000,), "rows": (5, 300), "planes": (3, 50, 7)})
        # These flags give up NaN and infinities.
        for values in ("normal",) if "-f" in options else ("normal", "special"):
            checks.run(lib, memory, f, sizes, values, files=(path,) if f in waves else ())


@pytest.mark.parametrize("options", ROUNDS)
def test_sums_in_any_order_are_refused(options, include, tmp_path):
    """gcc announces reordered sums in a macro; the error names the flag to add."""
    [source] = write(tmp_path, {"fast.c": "#include <kf/ops/add.h>\nextern int not_empty;\n"})
    message = fails(["gcc", "-O2", *options.split(), "-fsyntax-only", *flags(include), source])
    assert "#error" in message and "-fno-associative-math" in message
    passes(
        [
            "gcc",
            "-O2",
            *options.split(),
            "-fno-associative-math",
            "-fsyntax-only",
            *flags(include),
            source,
        ]
    )


def test_sums_in_any_order_are_refused_by_older_compilers(include, tmp_path):
    """gcc before 12 defines another macro, for more flags. The test pretends to be such a
    version."""
    [source] = write(tmp_path, {"fast.c": "#include <kf/ops/add.h>\nextern int not_empty;\n"})
    old = [
        "gcc",
        "-O2",
        "-w",
        "-U__ASSOCIATIVE_MATH__",
        "-U__GNUC__",
        "-D__GNUC__=11",
        "-fsyntax-only",
        *flags(include),
        source,
    ]
    passes(old)
    message = fails([*old, "-funsafe-math-optimizations"])
    assert "#error" in message and "-fno-associative-math" in message


@pytest.mark.parametrize("compiler", ["gcc", pytest.param("clang", marks=CLANG)])
def test_no_nan_is_refused(compiler, include, tmp_path):
    [source] = write(tmp_path, {"finite.c": "#include <kf/ops/add.h>\nextern int not_empty;\n"})
    assert "KF_ALLOW_FAST_MATH" in fails(
        [compiler, "-ffinite-math-only", "-fsyntax-only", *flags(include), source]
    )
    passes(
        [
            compiler,
            "-ffinite-math-only",
            "-DKF_ALLOW_FAST_MATH",
            "-fsyntax-only",
            *flags(include),
            source,
        ]
    )


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x87 is of x86")
@pytest.mark.parametrize("options", ["-mfpmath=387", "-mfpmath=both"])
def test_excess_precision_is_refused(options, include, tmp_path):
    [source] = write(tmp_path, {"x87.c": "#include <kf/ops/add.h>\nextern int not_empty;\n"})
    message = fails(["gcc", "-O2", options, "-fsyntax-only", *flags(include), source])
    assert "#error" in message and "-msse2 -mfpmath=sse" in message


@CLANG
@pytest.mark.parametrize("language", ["c", "c++"])
def test_the_users_own_code_stays_as_it_is(language, include, tmp_path):
    """The headers' pragmas for clang end with them: afterwards the user's flags and warnings hold
    again."""
    [source] = write(
        tmp_path,
        {
            "own.c": """
#include <kf/ops/add.h>
#include <kf/ops/softmax.h>
#include <kf/ops/sum.h>
float own(float x);
float own(float x) { return (x + 12582912.0f) - 12582912.0f; }
"""
        },
    )
    text = passes(
        [
            "clang",
            "-x",
            language,
            "-O2",
            "-funsafe-math-optimizations",
            *flags(include),
            "-S",
            source,
            "-o",
            "-",
        ]
    )
    body = text[text.index("own") :]
    assert "addss" not in body[body.index(":") : body.index("ret")], "the sum was not simplified"


def test_every_begin_has_its_end(include):
    """Tile loops lie between KFI_C_BEGIN and KFI_C_END, which come in pairs."""
    for path in sorted(p for d in include for p in (d / "kf").rglob("*.h") if p.name != "config.h"):
        lines = path.read_text().splitlines()
        begins, ends = (
            [i for i, line in enumerate(lines) if line == word]
            for word in ("KFI_C_BEGIN", "KFI_C_END")
        )
        loops = [i for i, line in enumerate(lines) if line.strip() == "KFI_TILE_LOOP"]
        assert len(begins) == len(ends) <= 1, path
        assert all(begins[0] < i < ends[0] for i in loops) if begins else not loops, path
