# SPDX-License-Identifier: Apache-2.0
"""Every header as users include it: alone, twice, from two translation units, as C11, C++17, C++20 and CUDA, without a
warning; what must not compile says why; no macro leaks; dependencies point one way."""

import os
import pathlib
import re
import shutil
import subprocess

import cases
import kflib
import pytest

CORE = kflib.ROOT / "include/kf/core"
NVCC = os.environ.get("NVCC") or shutil.which("nvcc") or ("/usr/local/cuda/bin/nvcc" if pathlib.Path("/usr/local/cuda/bin/nvcc").exists() else None)
needs_nvcc = pytest.mark.skipif(not NVCC, reason="no nvcc")
WARNINGS = ("-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror")
NVCC_WARNINGS = ("-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra,-Wshadow,-Wconversion,-Werror")
ARCH = "-arch=sm_90"
C_DIALECTS = {"c11": ("gcc", "-std=c11", "-x", "c"), "c++17": ("g++", "-std=c++17", "-x", "c++"), "c++20": ("g++", "-std=c++20", "-x", "c++")}
STEMS = sorted({pathlib.Path(f["header"]).name for f in kflib.manifest()["functions"]})
CORE_C = sorted(f"kf/core/{p.name}" for p in CORE.glob("*.h"))
CORE_CUDA = sorted(f"kf/core/{p.name}" for p in CORE.glob("*.cuh"))
# What include/kf may include that is not its own: the C library's and CUDA's runtime headers, nothing else.
ALLOWED = {"stdint.h", "stddef.h", "stdarg.h", "stdio.h", "string.h", "math.h", "unistd.h", "limits.h", "float.h",
           "cuda_runtime.h", "cuda_fp16.h", "cuda_bf16.h"}


def execute(command, cwd=None):
    command = [str(c) for c in command]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, errors="replace"), " ".join(command)


def passes(command, cwd=None):
    done, line = execute(command, cwd)
    assert done.returncode == 0, f"{line}\n{(done.stderr + done.stdout)[:6000]}"
    return done.stdout + done.stderr


def fails(command, cwd=None):
    done, line = execute(command, cwd)
    assert done.returncode != 0, f"compiled, and should not have: {line}"
    return done.stderr + done.stdout


def flags(include):
    return [f"-I{d}" for d in include]


def write(folder, files):
    """{name: text} into a folder; the paths."""
    paths = []
    for name, text in files.items():
        (folder / name).write_text(text)
        paths.append(folder / name)
    return paths


def file_of(header):
    return header.replace("/", "_").replace(".", "_")


def takes_addresses(stem, full):
    """C++ text that names a launcher of each kernel of one op: templates are only checked where they are instantiated."""
    chosen = {}
    for f in kflib.manifest()["functions"]:
        if pathlib.Path(f["header"]).name != stem:
            continue
        if full or (f["dtypes"] in (["f32"], ["bf16"], ["f32", "f16"], ["i64", "bf16"]) and f["activation"] in ("none", "leaky_relu")):
            chosen[(f["bwd"], f["state"], *f["dtypes"], f["activation"] if full else "")] = f["name"]
    lines = "\n".join(f"    (void *)&{name}<>," for name in chosen.values())
    return f"void *addresses_{stem}[] = {{\n{lines}\n}};\n"


# ---- alone

def alone(dialect, headers, include, tmp_path):
    """Each header in a file of its own, and nothing else in it."""
    compiler, *language = C_DIALECTS[dialect]
    sources = write(tmp_path, {f"{file_of(h)}.c": f'#include "{h}"\nextern int not_empty;\n' for h in headers})
    passes([compiler, *language, "-O2", *WARNINGS, "-fsyntax-only", *flags(include), *sources])


@pytest.mark.parametrize("dialect", C_DIALECTS)
def test_c_headers_alone(dialect, include, tmp_path):
    alone(dialect, [*CORE_C, "kf/ops/activations.h", *(f"kf/ops/{s}.h" for s in STEMS), "kf/kf.h"], include, tmp_path)


def test_every_generated_header_is_tested(include):
    made = {p.relative_to(include[1]).as_posix() for p in include[1].rglob("*.*h") if "user" not in p.parts}
    tested = {f"kf/ops/{s}{x}" for s in [*STEMS, "activations"] for x in (".h", ".cuh")} | {"kf/kf.h", "kf/kf.cuh"}
    assert made >= tested and {m for m in made if m.startswith("kf/ops/")} <= tested


def compile_cuda(include, tmp_path, files, *extra):
    sources = write(tmp_path, files)
    passes([NVCC, "-std=c++17", ARCH, *NVCC_WARNINGS, *extra, *flags(include), "-c", *sources], cwd=tmp_path)
    return [tmp_path / (p.stem + ".o") for p in sources]


@needs_nvcc
@pytest.mark.parametrize("part", ["core", *range(4)])
def test_cuda_headers_alone(part, include, tmp_path):
    """With the kernels of a few launchers, all of them from level 3 on."""
    if part == "core":
        headers = [*CORE_CUDA, "kf/ops/activations.cuh", "kf/kf.cuh"]
        compile_cuda(include, tmp_path, {f"{file_of(h)}.cu": f'#include "{h}"\n' for h in headers})
        # The C headers of core that CUDA code shares.
        shared = [h for h in CORE_C if h not in ("kf/core/math.h", "kf/core/map.h", "kf/core/parallel.h")]
        compile_cuda(include, tmp_path, {"shared.cu": "".join(f'#include "{h}"\n' for h in shared)})
        return
    files = {f"{s}.cu": f'#include "kf/ops/{s}.cuh"\n' + takes_addresses(s, cases.LEVEL > 2) for s in STEMS[part::4]}
    compile_cuda(include, tmp_path, files)


# ---- optimised, with every warning that only the optimiser can give

SIZES = {"n": "n", "rows": "n", "cols": "n", "outer": "n", "channels": "n", "inner": "n"}


def caller(f, skip=()):
    """A C function that calls f: `skip` names pointers that are NULL."""
    words, body = [], f["cpu_signature"].split("(", 1)[1].rsplit(")", 1)[0]
    for a in f["arguments"]:
        words.append("NULL" if a["name"] in skip else a["name"])
    unused = "".join(f"    (void){s};\n" for s in skip)
    head = f"int call_{f['cpu_name']}_{'_'.join(skip) or 'all'}({body})"
    return f"{head};\n{head}\n{{\n{unused}    return (int){f['cpu_name']}({', '.join(words)});\n}}\n"


@pytest.mark.parametrize("options", ["-O2", "-O3 -march=native -fopenmp"])
def test_no_warning_when_optimised(options, include, tmp_path):
    """The activation does not matter to the optimiser's warnings about the schedules; NULL gradients do."""
    sources = {}
    for f in kflib.manifest()["functions"]:
        if f["activation"] in ("none", "relu") and f["dtypes"][0] in (("f32", "bf16") if cases.LEVEL == 1 else ("f32", "bf16", "f16", "f64")):
            stem = pathlib.Path(f["header"]).name
            if stem == "cast" and f["dtypes"][0] != "bf16":
                continue
            text = sources.setdefault(f"{stem}.c", f'#include "kf/ops/{stem}.h"\n')
            gradients = [a["name"] for a in f["arguments"] if "kind" in a and a["role"] != "in"] if f["bwd"] else []
            if f["activation"] == "none" and f["dtypes"][0] == "bf16" and stem not in ("bias", "bias_act_add"):
                gradients = []  # each variant is compiled anew: the others' schedules are the same
            sources[f"{stem}.c"] = text + caller(f) + "".join(caller(f, (g,)) for g in gradients if len(gradients) > 1)
    wanted = sources if cases.LEVEL > 1 else {k: v for k, v in sources.items() if k in (
        "act.c", "add.c", "bias.c", "act_glu.c", "batch_norm.c", "bias_dropout_add.c", "prelu_bias.c", "cast.c")}
    paths = write(tmp_path, wanted)
    passes(["gcc", "-std=gnu11", *options.split(), "-Wall", "-Wextra", "-Werror", *flags(include), "-c", *paths], cwd=tmp_path)


# ---- twice, together

def test_twice(include, tmp_path):
    text = "".join(f'#include "{h}"\n' for h in [*CORE_C, "kf/ops/activations.h", *(f"kf/ops/{s}.h" for s in STEMS), "kf/kf.h"])
    for dialect, (compiler, *language) in C_DIALECTS.items():
        [source] = write(tmp_path, {f"twice_{file_of(dialect)}.c": text + text + "extern int not_empty;\n"})
        passes([compiler, *language, *WARNINGS, "-fsyntax-only", *flags(include), source])


BOTH = """
#include <kf/kf.cuh>
#include <kf/kf.h>
#include <kf/kf.cuh>
#include <kf/kf.h>
#include <kf/ops/add.cuh>
#include <kf/ops/add.h>

static_assert(sizeof(kf_f16) == 2 && alignof(kf_f16) == 2 && sizeof(kf_bf16) == 2 && alignof(kf_bf16) == 2, "2-byte types");
static_assert(sizeof(kf_i64) == 8, "8 bytes");
kf_f16 cuda_f16(__half h) { return h; }
kf_bf16 cuda_bf16(__nv_bfloat16 h) { return h; }

// An address, a pointer to function, and a call, beside a global of the user's own.
int n, x, out, rows;
kf_result_t (*pointer)(const float *, const float *, float *, int64_t, cudaStream_t) = kf_add_relu_f32<>;
kf_result_t both(const kf_f16 *a, kf_f16 *b, const float *f, float *g, cudaStream_t s)
{
    const kf_result_t one = kf_gelu_f16(a, b, 5, s);
    return one != KF_SUCCESS ? one : kf_cpu_relu_f32(f, g, 5);
}
"""


@needs_nvcc
@pytest.mark.parametrize("standard", ["c++17", "c++20"])
def test_both_umbrellas(standard, include, tmp_path):
    """Twice, in both orders, as a system path, as build integrations give it (a user's own globals raise no shadow warning)."""
    swapped = BOTH.replace("#include <kf/kf.cuh>\n#include <kf/kf.h>\n", "#include <kf/kf.h>\n#include <kf/kf.cuh>\n", 1)
    files = {"both.cu": BOTH, "swapped.cu": swapped} if standard == "c++17" or cases.LEVEL > 1 else {"both.cu": BOTH}
    sources = write(tmp_path, files)
    passes([NVCC, f"-std={standard}", ARCH, *NVCC_WARNINGS, *(f"-isystem={d}" for d in include), "-c", *sources], cwd=tmp_path)


# ---- two translation units

UNIT_A = """
#include <kf/kf.h>
#include <stdio.h>
#include <string.h>
EXTERN kf_result_t other(const float *a, const float *b, float *out, int64_t n);
EXTERN const char *other_detail(void);
int main(void)
{
    const float a[3] = {1, -2, 3}, b[3] = {1, 1, -5};
    float first[3] = {9, 9, 9}, second[3] = {8, 8, 8};
    if (kf_cpu_add_relu_f32(a, b, first, 3) != KF_SUCCESS || other(a, b, second, 3) != KF_SUCCESS) return 1;
    if (memcmp(first, second, sizeof first) != 0 || first[0] != 2.0f || first[1] != 0.0f) return 2;
    if (kf_cpu_add_relu_f32(a, b, first, -3) != KF_ERROR_INVALID_SIZE) return 3;
    if (!strstr(other_detail(), "kf_cpu_add_relu_f32: n is -3")) return 4; /* one detail per program */
    puts("same");
    return 0;
}
"""
UNIT_B = """
#include <kf/kf.h>
EXTERN kf_result_t other(const float *a, const float *b, float *out, int64_t n);
EXTERN const char *other_detail(void);
kf_result_t other(const float *a, const float *b, float *out, int64_t n) { return kf_cpu_add_relu_f32(a, b, out, n); }
const char *other_detail(void) { return kf_get_last_error_detail(); }
"""


@pytest.mark.parametrize("languages", [("c11", "c11"), ("c++17", "c++17"), ("c11", "c++17"), ("c++17", "c11")], ids="_".join)
@pytest.mark.parametrize("openmp", [(), ("-fopenmp",)], ids=["serial", "openmp"])
def test_two_units(languages, openmp, include, tmp_path):
    objects = []
    for language, text, name in zip(languages, (UNIT_A, UNIT_B), "ab"):
        compiler, *words = C_DIALECTS[language]
        extern = 'extern "C"' if language != "c11" else "extern"
        [source] = write(tmp_path, {f"{name}.c": text.replace("EXTERN", extern)})
        objects.append(tmp_path / f"{name}.o")
        passes([compiler, *words, "-O1", *WARNINGS, *openmp, *flags(include), "-c", source, "-o", objects[-1]])
    passes(["g++", *objects, *openmp, "-o", tmp_path / "program", "-lm"])
    assert passes([tmp_path / "program"]) == "same\n"


CUDA_A = """
#include <kf/kf.cuh>
#include <stdio.h>
#include <string.h>
kf_result_t other(const float *a, const float *b, float *out, int64_t n);
const char *other_detail(void);
int main(void)
{
    float a[3] = {1, 2, 3};
    if (other(a, a, a, -3) != KF_ERROR_INVALID_SIZE) return 1;
    if (kf_add_relu_f32(a, a, a, -4, 0) != KF_ERROR_INVALID_SIZE) return 2;
    if (!strstr(other_detail(), "kf_add_relu_f32: n is -4")) return 3;
    if (other(NULL, a, a, 3) != KF_ERROR_NULL_POINTER || !strstr(kf_get_last_error_detail(), "a is NULL")) return 4;
    if (kf_add_relu_f32(NULL, NULL, NULL, 0, 0) != KF_SUCCESS) return 5;
    puts("same");
    return 0;
}
"""
CUDA_B = """
#include <kf/ops/add.cuh>
kf_result_t other(const float *a, const float *b, float *out, int64_t n) { return kf_add_relu_f32(a, b, out, n, 0); }
const char *other_detail(void) { return kf_get_last_error_detail(); }
"""


@needs_nvcc
@pytest.mark.parametrize("rdc", [(), ("-rdc=true",)], ids=["whole", "rdc"])
def test_two_cuda_units(rdc, include, tmp_path):
    """What is refused before anything is launched needs no GPU."""
    objects = compile_cuda(include, tmp_path, {"a.cu": CUDA_A, "b.cu": CUDA_B}, *rdc)
    passes([NVCC, ARCH, *rdc, *objects, "-o", tmp_path / "program"])
    assert passes([tmp_path / "program"]) == "same\n"


# ---- must not compile

def test_fast_math_is_refused(include, tmp_path):
    [source] = write(tmp_path, {"fast.c": "#include <kf/kf.h>\nextern int not_empty;\n"})
    for compiler, *language in C_DIALECTS.values():
        said = fails([compiler, *language, "-O2", "-ffast-math", "-fsyntax-only", *flags(include), source])
        assert "#error" in said and "KF_ALLOW_FAST_MATH" in said
        passes([compiler, *language, "-O2", "-ffast-math", "-DKF_ALLOW_FAST_MATH", *WARNINGS, "-fsyntax-only", *flags(include), source])


def test_fast_math_is_refused_by_each_header(include, tmp_path):
    for stem in STEMS[:: 1 if cases.LEVEL > 1 else 6]:
        [source] = write(tmp_path, {"fast.c": f"#include <kf/ops/{stem}.h>\nextern int not_empty;\n"})
        assert "KF_ALLOW_FAST_MATH" in fails(["gcc", "-std=c11", "-ffast-math", "-fsyntax-only", *flags(include), source])


def test_cuda_header_without_nvcc(include, tmp_path):
    [source] = write(tmp_path, {"wrong.cpp": "#include <kf/kf.cuh>\n"})
    said = fails(["g++", "-std=c++17", "-fsyntax-only", *flags(include), source])
    assert "#error" in said and "compile with nvcc" in said and "kf/kf.h" in said


@needs_nvcc
def test_extern_c(include, tmp_path):
    """Inside extern "C" the first complaint is kf's own, and says what to do; not one from inside CUDA's headers."""
    [source] = write(tmp_path, {"wrong.cu": 'extern "C" {\n#include <kf/kf.cuh>\n}\n'})
    said = fails([NVCC, "-std=c++17", ARCH, *flags(include), "-c", source, "-o", tmp_path / "wrong.o"])
    first = next(line for line in said.splitlines() if "error" in line)
    assert "/kf/" in first, f"the first complaint is {first}"
    advice = said[said.index(first):].replace('may not have extern "C" linkage', "").replace("_", " ")  # the compiler's own words say nothing new
    assert re.search(r"outside (of )?extern .?C", advice), said[:1000]


# ---- what they leave behind

def macros(output, include):
    """{macro: file} of what the files below include define and leave defined, from a preprocessor run with -dD."""
    found, here = {}, ""
    for line in output.splitlines():
        if mark := re.match(r'#\s+\d+ "(.*?)"', line):
            here = mark[1]
        elif definition := re.match(r"#\s*define (\w+)", line):
            if any(here.startswith(str(d)) for d in include):
                found[definition[1]] = here
        elif removal := re.match(r"#\s*undef (\w+)", line):
            found.pop(removal[1], None)
    return found


def test_macros_of_the_c_headers(include, tmp_path):
    [source] = write(tmp_path, {"macros.c": "#include <kf/kf.h>\n"})
    for compiler, *language in C_DIALECTS.values():
        found = macros(passes([compiler, *language, "-E", "-dD", "-fopenmp", *flags(include), source]), include)
        assert "KF_SUCCESS" not in found and "KF_VERSION" in found
        leaked = {m: f for m, f in found.items() if not m.startswith(("KF_", "KFI_")) or "__" in m}
        assert not leaked


@needs_nvcc
def test_macros_of_the_cuda_headers(include, tmp_path):
    [source] = write(tmp_path, {"macros.cu": "#include <kf/kf.cuh>\n"})
    found = macros(passes([NVCC, "-std=c++17", ARCH, "-E", "-Xcompiler", "-dD", *flags(include), source]), include)
    assert "KF_VERSION" in found and "KF_FN" in found
    assert not {m: f for m, f in found.items() if not m.startswith(("KF_", "KFI_")) or "__" in m}


# ---- who includes whom

def includes_of(path):
    return re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(), re.M)


def test_include_edges(include):
    ours = [p for d in include for p in sorted((d / "kf").rglob("*")) if p.suffix in (".h", ".cuh")]
    assert len(ours) > 50
    wrong = []
    for path in ours:
        layer = path.parent.name  # core, ops, kf
        for target in includes_of(path):
            own = target.startswith("kf/")
            if not own and target not in ALLOWED:
                wrong.append(f"{path}: {target} is none of {sorted(ALLOWED)}")
            if own and not any((d / target).is_file() for d in include):
                wrong.append(f"{path}: {target} does not exist")
            if own and layer == "core" and not target.startswith("kf/core/"):
                wrong.append(f"{path}: core includes {target}")
            if own and layer == "ops" and not target.startswith(("kf/core/", "kf/ops/")):
                wrong.append(f"{path}: ops includes {target}")
            if path.suffix == ".h" and (target.endswith(".cuh") or (target.startswith("cuda_") and path.name != "dtype.h")):
                wrong.append(f"{path}: a C header includes {target}")
    assert not wrong, "\n".join(wrong)


def test_no_names_of_frameworks(include):
    """Nothing of CUTLASS, CCCL, the C++ standard library or a framework, in any spelling."""
    words = re.compile(r"\b(cutlass|cute|cub|thrust|std|at|torch|c10|xla)::|libcu\+\+|<cuda/")
    for directory in include:
        for path in (directory / "kf").rglob("*.*h"):
            assert not (hit := words.search(path.read_text())), f"{path}: {hit[0]}"


def test_c_types(tmp_path, include):
    text = """#include <kf/core/dtype.h>
    ASSERT(sizeof(kf_f16) == 2 && sizeof(kf_bf16) == 2 && sizeof(kf_i64) == 8, "sizes");
    ASSERT(KF_F32 == 0 && KF_F16 == 1 && KF_BF16 == 2 && KF_F64 == 3 && KF_I32 == 4 && KF_I64 == 5, "numbers are ABI");
    """
    results = """#include <kf/core/result.h>
    ASSERT(KF_SUCCESS == 0 && KF_ERROR_NULL_POINTER == 1 && KF_ERROR_INVALID_SIZE == 2 && KF_ERROR_INVALID_VALUE == 3, "ABI");
    ASSERT(KF_ERROR_OVERLAP == 4 && KF_ERROR_WORKSPACE == 5 && KF_ERROR_UNSUPPORTED == 6 && KF_ERROR_NO_KERNEL_IMAGE == 7, "ABI");
    ASSERT(KF_ERROR_CUDA == 8 && KF_ERROR_OUT_OF_MEMORY == 9, "ABI");
    """
    for compiler, *language in C_DIALECTS.values():
        word = "_Static_assert" if compiler == "gcc" else "static_assert"
        for i, body in enumerate((text, results)):
            [source] = write(tmp_path, {f"types{i}.c": body.replace("ASSERT", word)})
            passes([compiler, *language, *WARNINGS, "-fsyntax-only", *flags(include), source])
    # Two of them cannot be added by mistake.
    for kind in ("kf_f16", "kf_bf16"):
        [source] = write(tmp_path, {"sum.c": f"#include <kf/core/dtype.h>\nint f({kind} a, {kind} b) {{ return (int)(a + b); }}\n"})
        fails(["gcc", "-std=c11", "-fsyntax-only", *flags(include), source])
