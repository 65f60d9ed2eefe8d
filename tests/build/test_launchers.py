# SPDX-License-Identifier: Apache-2.0
"""Launchers with C linkage, as users get them: kf_launchers.h in C11 and C++,
kf_launchers_<dtype>.cu compiled by nvcc and linked by gcc, as a shared library through ctypes and
dlopen, with another ABI version, and together with kf.h and kf.cuh."""

import concurrent.futures
import ctypes
import os
import pathlib
import re
import shutil
import subprocess
import sys

import cases
import kflib
import pytest
import toolkit
from conftest import ROOT
from kfgen.cli import main
from kfgen.entries import spec
from kfgen.interfaces import abi
from kfgen.model.dtypes import DTYPES
from kfgen.render import launchers

NVCC = toolkit.nvcc()
needs_nvcc = pytest.mark.skipif(not NVCC, reason="no nvcc")
WARNINGS = ("-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Wpedantic", "-Werror")
DIALECTS = {
    "c11": ("gcc", "-std=c11", "-x", "c"),
    "c++17": ("g++", "-std=c++17", "-x", "c++"),
    "c++20": ("g++", "-std=c++20", "-x", "c++"),
}
SUBSET = ("--ops", "add,bias", "--activations", "relu", "--dtypes", "f32,f16")
VERSION = abi.version()
OWN = """
[activation.cubed]
brief = "x * x * x"
expr = "x * x * x"
ref = "x ** 3"
edges = { nan = "nan", inf = "inf", "-inf" = "-inf" }
source = "here"
[op."shift_{act}"]
brief = "act(x + shift)"
operands = { x = "elem", shift = "row" }
expr = "act(x + shift)"
ref = "act(x + shift)"
source = "here"
"""


def execute(command, env=None):
    command = [str(c) for c in command]
    return subprocess.run(
        command, capture_output=True, text=True, errors="replace", env={**os.environ, **(env or {})}
    ), " ".join(command)


def passes(*command, env=None):
    done, line = execute(command, env)
    assert done.returncode == 0, f"{line}: {done.returncode}\n{(done.stderr + done.stdout)[:6000]}"
    return done.stdout


def fails(*command, env=None):
    done, line = execute(command, env)
    assert done.returncode != 0, f"should have failed: {line}"
    return done.stderr + done.stdout


# ---- which file defines a function


def symbols(text):
    """Returns the functions that a .cu file defines."""
    return re.findall(
        r"^KFI_EXPORT \w+ (?:char \*)?\*?(kf_\w+)\(", text.replace("const char *", "text "), re.M
    )


def test_each_function_is_in_one_file(manifest):
    """The file of its first dtype must define each function, and no other; the header declares it
    with the manifest's signature."""
    files = kflib.files()
    declared = " ".join(files["kf/kf_launchers.h"].split())
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


@pytest.fixture(scope="module")
def own(once):
    """Include directories of a user's spec, beside headers as `make install` leaves them."""
    return once("launchers of a user", of_a_user)


def of_a_user(work):
    (work / "my.toml").write_text(OWN)
    chosen = ["--ops", "add,shift,bias", "--dtypes", "f32"]
    assert (
        main(["render", "--spec", str(work / "my.toml"), *chosen, "--out", str(work / "include")])
        == 0
    )
    return [ROOT / "include", work / "include"]


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


BOTH_BACKENDS = """
#include <kf/ops/act.h>
#include <kf/kf_launchers.h>
double scalar(double x);
kf_result_t cuda(const double *x, double *out, struct CUstream_st *stream);
kf_result_t cpu(const double *x, double *out);
double scalar(double x) { return kf_gelu_double(x) + kf_gelu_bwd_double(x, 1.0) + (double)kf_gelu((float)x); }
kf_result_t cuda(const double *x, double *out, struct CUstream_st *stream) { return kf_gelu_f64(x, out, 1, stream); }
kf_result_t cpu(const double *x, double *out) { return kf_cpu_gelu_f64(x, out, 1); }
"""


STRIDED = """#include <kf/{header}>
kf_result_t strided(const float *x, float *out, struct CUstream_st *stream)
{{
    kf_softmax_strides_t strides = {{0}};
    strides.x = KF_BROADCAST;
    return {call};
}}
"""


def test_header_alone_in_plain_c(include, own, tmp_path):
    """kf_launchers.h must declare the structs of strides itself, since nothing else includes them."""
    of_kf = STRIDED.format(
        header="kf_launchers.h", call="kf_softmax_f32(x, out, 2, 3, &strides, stream)"
    )
    for text, folders in (
        (of_kf, include),
        ("#include <kf/kf_my_launchers.h>\nextern int not_empty;\n", own),
    ):
        (tmp_path / "alone.c").write_text(text)
        passes(
            "gcc",
            "-std=c11",
            "-fsyntax-only",
            *WARNINGS,
            *(f"-I{d}" for d in folders),
            tmp_path / "alone.c",
        )


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


@pytest.mark.level(2)
def test_make_install(tmp_path):
    """`make install` must install the header and the .cu files that docs/launchers.md uses."""
    passes("make", "-C", ROOT, "install", f"PREFIX={tmp_path}", f"PYTHON={sys.executable}")
    made = {p.name for p in (tmp_path / "include/kf").glob("kf_launchers*")}
    assert made == {"kf_launchers.h", *(f"kf_launchers_{d}.cu" for d in DTYPES)}


def compile_cuda(include, source, *extra):
    command = [
        NVCC,
        "-arch=sm_90",
        "-Werror",
        "all-warnings",
        "-Xcompiler",
        "-Wall,-Wextra,-Werror",
        *extra,
        *(f"-I{d}" for d in include),
    ]
    return [*command, "-c", source, "-o", source.with_suffix(".o")]


AFTER = """
#include <kf/{first}>
#include <kf/kf_launchers.h>
kf_result_t call(const float *a, float *b, cudaStream_t s) {{ return kf_add_relu_f32(a, a, b, 5, s); }}
"""


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
        said = fails(*compile_cuda([*include, own[1]], tmp_path / "before.cu", "-E"))
        assert "#error" in said and header in said and "include it after" in said
    (tmp_path / "fine.cu").write_text(
        "#include <kf/kf_launchers.h>\n#include <kf/ops/activations.cuh>\n"
        "__global__ void own(float *x) { *x = kf_gelu(*x); }\n"
        "kf_result_t call(const kf_f16 *a, kf_f16 *b, cudaStream_t s) { return kf_relu_f16(a, b, 5, s); }\n"
    )
    passes(*compile_cuda(include, tmp_path / "fine.cu"))
    assert f"kf_relu_f16_abi{VERSION}" in passes("nm", "-u", tmp_path / "fine.o")


def test_refused_with_nvrtc(include, tmp_path):
    (tmp_path / "rtc.cpp").write_text("#include <kf/kf_launchers.h>\n")
    said = fails(
        "g++",
        "-D__CUDACC_RTC__",
        "-fsyntax-only",
        *(f"-I{d}" for d in include),
        tmp_path / "rtc.cpp",
    )
    assert "is for the host" in said


# ---- compiled once, linked with programs that gcc compiled


@pytest.fixture(scope="module")
def built(once):
    """A folder with include/, kf_launchers_f32.o and _f16.o, libkf_launchers.a and .so, of a few
    functions."""
    return once("built launchers", build)


def build(work):
    shutil.copytree(ROOT / "include/kf/core", work / "include/kf/core")
    assert main(["render", "--out", str(work / "include"), *SUBSET]) == 0
    sources = sorted((work / "include/kf").glob("kf_launchers_*.cu"))
    assert len(sources) == 2
    objects = [work / f"{s.stem}.o" for s in sources]

    def one(source, target):
        passes(
            NVCC,
            "-O3",
            "-arch=sm_90",
            "-Werror",
            "all-warnings",
            "-Xcompiler",
            "-fPIC,-Wall,-Wextra,-Wshadow,-Wconversion,-Werror",
            f"-I{work / 'include'}",
            "-c",
            source,
            "-o",
            target,
        )

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(one, sources, objects))
    passes("ar", "rcs", work / "libkf_launchers.a", *objects)
    passes(NVCC, "-shared", *objects, "-o", work / "libkf_launchers.so")
    return work


def cuda():
    """Returns the toolkit's path. nvcc may be a script that starts another nvcc, so it is asked
    itself."""
    said = execute([NVCC, "-dryrun", "-x", "cu", "/dev/null", "-c", "-o", "/dev/null"])[0].stderr
    return pathlib.Path(re.search(r"\bTOP=(.*)", said)[1]).resolve()


def static(built, program, *extra):
    """Returns gcc's command that links the archive into a program, without nvcc."""
    return [
        "gcc",
        "-std=c11",
        "-O2",
        *WARNINGS,
        f"-I{built / 'include'}",
        program,
        *extra,
        built / "libkf_launchers.a",
        f"-L{cuda() / 'lib64'}",
        "-lcudart_static",
        "-lstdc++",
        "-lpthread",
        "-ldl",
        "-lrt",
        "-lm",
        "-o",
        program.with_suffix(""),
    ]


PROGRAM = """
#include <kf/kf_launchers.h>
#include <kf/kf.h>
#include <stdio.h>
#include <string.h>
#define EXPECT(call, code, words) \\
    if ((call) != (code) || !strstr(kf_get_last_error_detail(), words)) return printf("%s: %s\\n", #call, kf_get_last_error_detail()), 1

int main(int count, char **words)
{
    float f[8] = {0}, g[8] = {0};
    kf_f16 h[8], k[8];
    memset(h, 0, sizeof h);
    memset(k, 0x55, sizeof k);
    EXPECT(kf_add_relu_f32(f, f, g, -3, NULL), KF_ERROR_INVALID_SIZE, "kf_add_relu_f32: n is -3");
    EXPECT(kf_add_relu_f16(h, NULL, k, 8, NULL), KF_ERROR_NULL_POINTER, "kf_add_relu_f16: b is NULL");
    EXPECT(kf_add_relu_bwd_f32(f, f, NULL, f, g, g + 1, 4, NULL, 0, NULL), KF_ERROR_OVERLAP, "kf_add_relu_bwd_f32: db");
    EXPECT(kf_bias_relu_bwd_f16(h, h, NULL, h, NULL, k, 2, 4, NULL, 0, NULL), KF_ERROR_WORKSPACE, "kf_bias_relu_bwd_f16: workspace");
    if (kf_bias_relu_bwd_f16_workspace_bytes(2, 4) == 0 || kf_add_relu_bwd_f32_workspace_bytes(4) != 0) return 2;
    if (kf_add_relu_f32(NULL, NULL, NULL, 0, NULL) != KF_SUCCESS || kf_cpu_add_relu_f32(f, f, g, 8) != KF_SUCCESS) return 3;
    if (kf_cpu_add_relu_f32(f, f, g, -9) != KF_ERROR_INVALID_SIZE) return 4;
    if (strcmp(kf_launchers_f32_error_detail(), kf_get_last_error_detail())) return 4;
    if (kf_check_abi("kf_launchers_f16", kf_launchers_f16_abi_version()) != KF_SUCCESS) return 5;
    if (strcmp(kf_launchers_f16_error_string(KF_ERROR_OVERLAP), kf_get_error_string(KF_ERROR_OVERLAP))) return 6;
    for (int i = 0; i < 8; ++i)
        if (k[i].bits != 0x5555) return 7; /* nothing is written by a call that is refused */
    if (count > 1) return puts(words[1]) < 0; /* a GPU would read this host's memory */
    const kf_result_t launched = kf_add_relu_f32(f, f, g, 8, NULL);
    return printf("%d %s\\n", (int)launched, kf_get_last_error_detail()) < 0;
}
"""


def check_program(path, env=None):
    """Refused arguments need no GPU. Without one, the launch returns CUDA's error."""
    if kflib.has_gpu():
        assert passes(path, "checked", env=env) == "checked\n"
    else:
        assert re.match(
            r"8 kf_add_relu_f32: launch of .*: CUDA error \d+ \(", passes(path, env=env)
        )


@needs_nvcc
def test_linked_with_gcc(built, tmp_path):
    (tmp_path / "program.c").write_text(PROGRAM)
    passes(*static(built, tmp_path / "program.c"))
    check_program(tmp_path / "program")


@needs_nvcc
@pytest.mark.parametrize("dialect", cases.by_level(["c11"], ["c11", "c++17"]))
def test_linked_with_a_shared_library(built, dialect, tmp_path):
    """The library writes the error's detail and the program's inlined function reads it, so both
    must share one variable."""
    (tmp_path / "program.c").write_text(PROGRAM)
    compiler, *language = DIALECTS[dialect]
    passes(
        compiler,
        *language,
        "-O2",
        *WARNINGS,
        f"-I{built / 'include'}",
        tmp_path / "program.c",
        "-x",
        "none",
        f"-L{built}",
        "-lkf_launchers",
        "-lm",
        "-o",
        tmp_path / "program",
    )
    check_program(tmp_path / "program", env={"LD_LIBRARY_PATH": str(built)})


@needs_nvcc
def test_ctypes(built):
    """Runs in a new process: a foreign-function interface has no header, only symbol names."""
    text = f"""
import ctypes
kf = ctypes.CDLL({str(built / "libkf_launchers.so")!r})
assert kf.kf_launchers_f32_abi_version() == {VERSION}
kf.kf_launchers_f32_error_detail.restype = kf.kf_launchers_f32_error_string.restype = ctypes.c_char_p
call = kf.kf_add_relu_f32
call.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64, ctypes.c_void_p]
code = call(None, None, None, 7, None)
print(code, kf.kf_launchers_f32_error_string(code).decode(), "|", kf.kf_launchers_f32_error_detail().decode())
"""
    said = passes(sys.executable, "-c", text)
    assert (
        said
        == "1 a required pointer is NULL | kf_add_relu_f32: a is NULL, expected a pointer to 7 elements\n"
    )


STEP = re.compile(r"<!-- (file: (?P<file>\S+)|run|output) -->\n```\w*\n(?P<text>.*?)```\n", re.S)


@pytest.mark.level(2)
@needs_nvcc
def test_the_page_works(tmp_path):
    """docs/launchers.md must work as written, with an installed kf of few functions."""
    shutil.copytree(ROOT / "include/kf/core", tmp_path / "prefix/include/kf/core")
    assert (
        main(
            [
                "render",
                "--out",
                str(tmp_path / "prefix/include"),
                "--ops",
                "bias",
                "--activations",
                "relu",
                "--dtypes",
                "f32",
            ]
        )
        == 0
    )
    path = os.pathsep.join(
        [
            str(pathlib.Path(sys.executable).parent),
            str(ROOT / "gen/bin"),
            os.environ["PATH"],
            str(pathlib.Path(NVCC).parent),
        ]
    )
    said, done = "", []
    for step in STEP.finditer((ROOT / "docs/launchers.md").read_text()):
        done.append(step[1].split(":")[0])
        if step["file"]:
            (tmp_path / step["file"]).write_text(step["text"])
        elif step[1] == "run":
            said = passes(
                "bash",
                "-ec",
                f"cd {tmp_path}\n{step['text']}",
                env={"PATH": path, "CUDA": str(cuda())},
            )
        else:
            assert said == step["text"]
    assert [done.count(what) for what in ("file", "run", "output")] == [2, 5, 2], (
        "the page has lost its marks"
    )


# ---- launchers of another ABI version


@pytest.fixture
def newer(built, tmp_path):
    """The same headers with the next ABI version."""
    shutil.copytree(built / "include", tmp_path / "include")
    path = tmp_path / "include/kf/core/version.h"
    text = path.read_text()
    assert f"KF_ABI_VERSION {VERSION}\n" in text
    path.write_text(text.replace(f"KF_ABI_VERSION {VERSION}\n", f"KF_ABI_VERSION {VERSION + 1}\n"))
    return tmp_path


@needs_nvcc
def test_another_abi_does_not_link(built, newer):
    (newer / "program.c").write_text(PROGRAM)
    command = [
        f"-I{newer / 'include'}" if str(c) == f"-I{built / 'include'}" else c
        for c in static(built, newer / "program.c")
    ]
    assert f"undefined reference to `kf_add_relu_f32_abi{VERSION + 1}'" in fails(*command)


@needs_nvcc
def test_another_abi_does_not_load(built, newer, tmp_path):
    """A program linked with one version of the library and started with another must fail in the
    loader, which names the symbol."""
    (newer / "library.c").write_text(
        f"int kf_add_relu_f32_abi{VERSION + 1}(void) {{ return 0; }}\n"
    )
    (newer / "program.c").write_text(
        "#include <kf/kf_launchers.h>\nint main(void)\n{\n"
        "    return (int)kf_add_relu_f32(NULL, NULL, NULL, 0, NULL);\n}\n"
    )
    passes("gcc", "-shared", "-fPIC", newer / "library.c", "-o", newer / "libkf_launchers.so")
    passes(
        "gcc",
        f"-I{newer / 'include'}",
        newer / "program.c",
        f"-L{newer}",
        "-lkf_launchers",
        "-Wl,-z,now",
        "-o",
        tmp_path / "program",
    )
    passes(tmp_path / "program", env={"LD_LIBRARY_PATH": str(newer)})
    said = fails(tmp_path / "program", env={"LD_LIBRARY_PATH": str(built)})
    assert f"undefined symbol: kf_add_relu_f32_abi{VERSION + 1}" in said and said.count("\n") == 1


def test_check_abi(include, tmp_path):
    """kf_check_abi, for callers of dlopen, must refuse another version with a message that says
    what to rebuild."""
    (tmp_path / "check.c").write_text("""
#include <kf/kf_launchers.h>
#include <stdio.h>
int main(void)
{
    if (kf_check_abi("kf_launchers_f32", KF_ABI_VERSION) != KF_SUCCESS || kf_get_last_error_detail()[0]) return 1;
    if (kf_check_abi("kf_launchers_f32", KF_ABI_VERSION + 1) != KF_ERROR_UNSUPPORTED) return 2;
    return puts(kf_get_last_error_detail()) < 0;
}
""")
    passes(
        "gcc",
        "-std=c11",
        *WARNINGS,
        *(f"-I{d}" for d in include),
        tmp_path / "check.c",
        "-o",
        tmp_path / "check",
    )
    assert passes(tmp_path / "check") == (
        f"kf: kf_launchers_f32 was built with ABI {VERSION + 1}, this header is ABI {VERSION}: "
        "rebuild kf_launchers_f32.cu\n"
    )


# ---- a user's own

OWN_PROGRAM = """
#include <kf/kf_my_launchers.h>
#include <stdio.h>
int main(void)
{
    if (kf_shift_cubed_f32(NULL, NULL, NULL, 2, 3, NULL) != KF_ERROR_NULL_POINTER) return 1;
    puts(kf_get_last_error_detail());
    return kf_check_abi("kf_my_launchers_f32", kf_my_launchers_f32_abi_version()) != KF_SUCCESS;
}
"""


@pytest.mark.level(2)
@needs_nvcc
def test_a_user_s_own_launchers(tmp_path):
    """A user's launchers must link, and an object of an older spec must not: kf's ABI version does
    not follow a user's signatures, but their hash does."""
    shutil.copytree(ROOT / "include/kf/core", tmp_path / "include/kf/core")
    assert (
        main(["render", "--ops", "add", "--dtypes", "f32", "--out", str(tmp_path / "include")]) == 0
    )
    (tmp_path / "program.c").write_text(OWN_PROGRAM)

    def render_and_compile(text):
        (tmp_path / "my.toml").write_text(text)
        assert (
            main(
                [
                    "render",
                    "--spec",
                    str(tmp_path / "my.toml"),
                    "--ops",
                    "shift",
                    "--activations",
                    "cubed",
                    "--dtypes",
                    "f32",
                    "--out",
                    str(tmp_path / "include"),
                ]
            )
            == 0
        )
        passes(
            "gcc",
            "-std=c11",
            *WARNINGS,
            f"-I{tmp_path / 'include'}",
            "-c",
            tmp_path / "program.c",
            "-o",
            tmp_path / "program.o",
        )

    link = [NVCC, tmp_path / "program.o", tmp_path / "my.o", "-o", tmp_path / "program"]
    render_and_compile(OWN)
    passes(
        NVCC,
        "-O3",
        "-arch=sm_90",
        "-Werror",
        "all-warnings",
        f"-I{tmp_path / 'include'}",
        "-c",
        tmp_path / "include/kf/kf_my_launchers_f32.cu",
        "-o",
        tmp_path / "my.o",
    )
    passes(*link)
    assert (
        passes(tmp_path / "program")
        == "kf_shift_cubed_f32: x is NULL, expected a pointer to 6 elements\n"
    )
    swapped = OWN.replace(
        'operands = { x = "elem", shift = "row" }', 'operands = { shift = "row", x = "elem" }'
    )
    assert swapped != OWN
    render_and_compile(swapped)
    assert f"undefined reference to `kf_shift_cubed_f32_abi{VERSION}_" in fails(*link)


# ---- without nvcc


@pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")
def test_without_nvcc(include, tmp_path):
    """docs/nvrtc.md: a library of launchers without kernels, whose loader is a Python function. The
    fake driver here accepts every device call."""
    assert main(["render", "--out", str(tmp_path), *SUBSET]) == 0
    page = (ROOT / "docs/nvrtc.md").read_text()
    (tmp_path / "loader.h").write_text(
        re.search(r"<!-- file: loader.h -->\n```cpp\n(.*?)```", page, re.S)[1]
    )
    (tmp_path / "loader.cpp").write_text(
        '#include "loader.h"\nCUresult (*my_loader)(const char *, CUfunction *);\n'
    )
    driver = ROOT / "tests/support/gpu/fake_libcuda.cpp"
    passes(
        "g++",
        "-std=c++17",
        "-fPIC",
        "-shared",
        "-isystem",
        toolkit.include(),
        tmp_path / "loader.cpp",
        driver,
        "-o",
        tmp_path / "libdriver.so",
    )
    passes(
        "g++",
        "-std=c++17",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fPIC",
        "-shared",
        "-include",
        tmp_path / "loader.h",
        "-isystem",
        tmp_path,
        "-isystem",
        include[0],
        "-isystem",
        toolkit.include(),
        "-x",
        "c++",
        tmp_path / "kf/kf_launchers_f32.cu",
        "-x",
        "none",
        tmp_path / "libdriver.so",
        "-Wl,-z,defs",
        "-o",
        tmp_path / "libkf_launchers.so",
    )
    # Loaded locally: other tests' libraries bring drivers of their own.
    driver, lib = (
        ctypes.CDLL(str(tmp_path / "libdriver.so")),
        ctypes.CDLL(str(tmp_path / "libkf_launchers.so")),
    )
    asked = []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
    def load(name, function):
        asked.append(name.decode())
        return 500

    ctypes.c_void_p.in_dll(driver, "my_loader").value = ctypes.cast(load, ctypes.c_void_p).value
    lib.kf_launchers_f32_error_detail.restype = ctypes.c_char_p
    lib.kf_add_relu_f32.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64, ctypes.c_void_p]
    assert lib.kf_add_relu_f32(256, 512, 1024, 4, None) == 7 and asked == ["kfk_add_f32<1, 4, 1>"]
    assert lib.kf_launchers_f32_error_detail() == (
        b"kf_add_relu_f32: kernel kfk_add_f32<1, 4, 1> was not loaded: CUDA error 500 "
        b"(as the test asked for)"
    )


# ---- all of them


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
    """kflib.py, or a user, must be able to pass every argument by value: all C types are known, and
    structs of strides consist of int64_t."""
    assert {
        a["ctype"]
        for f in manifest["functions"]
        for a in f["arguments"]
        if "ctype" in a and a["role"] != "strides"
    } <= {*kflib.CTYPES, "void *", "const uint64_t *"} and ctypes.sizeof(ctypes.c_int64) == 8


# ---- Meson

MESON = shutil.which(
    "meson", path=os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
)
MESON_FILE = """
project('consumer', 'c', default_options: ['warning_level=3', 'werror=true'])
executable('program', 'program.c', dependencies: dependency('kf_launchers'))
"""


@pytest.mark.level(2)
@needs_nvcc
@pytest.mark.skipif(not MESON, reason="no meson")
def test_meson_static_library(tmp_path):
    """A C project must get the CUDA launchers from kf as a subproject, and recompile them after an
    edit of a header."""
    kf = tmp_path / "subprojects/kf"
    for part in ("gen", "include", "templates"):
        shutil.copytree(ROOT / part, kf / part, ignore=shutil.ignore_patterns("__pycache__"))
    for part in ("meson.build", "meson_options.txt"):
        shutil.copy(ROOT / part, kf / part)
    (tmp_path / "subprojects/kf.wrap").write_text(
        "[wrap-file]\ndirectory = kf\n[provide]\nkf = kf_dep\nkf_launchers = kf_launchers_dep\n"
    )
    (tmp_path / "meson.build").write_text(MESON_FILE)
    (tmp_path / "program.c").write_text(
        "#include <kf/kf_launchers.h>\n#include <stdio.h>\nint main(void)\n{\n"
        "    if (kf_add_relu_f32(NULL, NULL, NULL, 4, NULL) != KF_ERROR_NULL_POINTER) return 1;\n"
        "    return puts(kf_get_last_error_detail()) < 0;\n}\n"
    )
    env = {
        "PATH": os.pathsep.join(
            [
                str(pathlib.Path(sys.executable).parent),
                os.environ["PATH"],
                str(pathlib.Path(NVCC).parent),
            ]
        )
    }
    passes(
        MESON,
        "setup",
        tmp_path / "build",
        tmp_path,
        "-Dkf:ops=add",
        "-Dkf:activations=relu",
        "-Dkf:dtypes=f32",
        "-Dkf:launchers=enabled",
        "-Dkf:nvcc_flags=-O3,-arch=sm_90",
        env=env,
    )
    passes("ninja", "-C", tmp_path / "build", env=env)
    assert (
        passes(tmp_path / "build/program")
        == "kf_add_relu_f32: a is NULL, expected a pointer to 4 elements\n"
    )
    assert "no work to do" in passes("ninja", "-C", tmp_path / "build", env=env)
    (kf / "include/kf/core/launch.cuh").touch()
    assert "kf_launchers_f32.o" in passes("ninja", "-n", "-v", "-C", tmp_path / "build", env=env)
