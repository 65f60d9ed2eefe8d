# SPDX-License-Identifier: Apache-2.0
"""Compiles the examples as C and C++ without warnings against installed headers, and runs them."""

import pathlib
import re
import shutil
import subprocess

import cases
import kflib
import pytest
import toolkit
from conftest import BUILD, ROOT

EXAMPLES = ROOT / "examples"
C = sorted(p.name for p in EXAMPLES.glob("*.c") if not p.name.startswith("demo"))
CUDA = sorted(p.name for p in EXAMPLES.glob("*.cu") if not p.name.startswith("demo"))
WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror"]
NVCC = shutil.which("nvcc") or next(
    (str(p) for p in [pathlib.Path("/usr/local/cuda/bin/nvcc")] if p.exists()), None
)
NO_GPU = 77
LAUNCHED = [  # 07_nvrtc.cpp launches these: kernels as named in cubins, blocks and threads
    "_Z11kfk_add_f32ILi1ELi4ELi1EE 500 1 256",
    "_Z16kfk_bias_bwd_f32ILi7ELi4ELi0EE 256 1 512",
    "_Z16kfk_sum_partialsILi0ELi0EE 32 1 512",
    "_Z18kfk_layer_norm_f32ILi7ELi4ELi1EE 512 1 64",
    "_Z11kfk_sum_f32ILi0ELi1EE 32 1 256",
]
OUTPUTS = {
    "00_cpu.c": "-0.1587 0.8413 0.0000 1.9545 3.9999 2.9960\n",
    "00_backward.c": "dbias 1.0019 2.0838 1.5119\n",
    "08_tensors.c": "2 6 0 0 4 8\n",
    "11_layer.c": "30 120 2060 530\n",
    "09_embedding.c": "0 2 0 4 2 of each token; token 5: NaN; turned -0.6023 2.7635\n",
    "12_vocabulary.c": "a loss of 3.9 at first, of less than 0.2 after 60 steps\n",
    "13_positions.c": (
        "1.05 1.05 normalised; 1.22 1.22, one behind the other; -1.14 at the same place; "
        "computed angles are the same\n"
    ),
    "15_heads.c": "both parts give the whole; 12 rows see nothing of the second\n",
    "16_multi_head.c": "causal 1.3157 1.2777; encoder 0.8030 0.4644\n",
    "17_decoding.c": "sequences of 11 and 8 rows, each step is right\n",
    "18_blocks.c": "9 of 25 blocks give the result\n",
    "15_optimizer.c": "a loss of 2.06 at first, of less than 0.001 after 300 steps\n",
}


def run(*command, status=(0,)):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    assert done.returncode in status, (
        f"{' '.join(map(str, command))}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    )
    return done


@pytest.fixture(scope="module")
def prefix(once):
    """Returns an include directory with core, generated headers and those of my_ops.toml."""
    return once("headers of the examples", installed)


def installed(out):
    shutil.copytree(
        ROOT / "include", out, dirs_exist_ok=True, ignore=shutil.ignore_patterns("meson.build")
    )
    shutil.copytree(kflib.render(BUILD)[1] / "kf", out / "kf", dirs_exist_ok=True)
    run(
        kflib.sys.executable,
        ROOT / "gen/bin/kfgen",
        "render",
        "--spec",
        EXAMPLES / "my_ops.toml",
        "--out",
        out,
    )
    for name, ops in (
        ("functions.h", "add,linear"),
        ("layer.h", "linear,causal_attention,mask_attention"),
    ):
        chosen = ["--ops", ops, "--dtypes", "f32", "--activations", "none,relu"]
        run(kflib.sys.executable, ROOT / "gen/bin/kfgen", "runtime", *chosen, "-o", out / name)
    return out


@pytest.mark.parametrize(
    "compiler", cases.by_level(["gcc -std=c11"], ["gcc -std=c11", "g++ -std=c++17 -xc++"])
)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.check][: not n.startswith("00_")]) for n in C]
)
def test_c(name, compiler, prefix, tmp_path):
    flags = [
        *WARNINGS,
        *(["-Wno-missing-field-initializers"] if "++" in compiler else []),
    ]  # {0} is C's way to begin a struct
    run(
        *compiler.split(),
        "-O2",
        *flags,
        "-isystem",
        prefix,
        EXAMPLES / name,
        "-o",
        tmp_path / "example",
        "-lm",
    )
    printed = run(tmp_path / "example").stdout
    assert printed.endswith("\n"), "an example says what it found"
    if name in OUTPUTS:
        assert printed == OUTPUTS[name]


@pytest.mark.check
def test_demo(prefix, tmp_path):
    """Runs the program of `make demo` on small tensors, with its checks against float64."""
    run(
        "gcc",
        "-O1",
        *WARNINGS,
        "-DROWS=64",
        "-DCOLS=512",
        "-isystem",
        prefix,
        EXAMPLES / "demo_cpu.c",
        "-o",
        tmp_path / "demo",
        "-lm",
    )
    lines = run(tmp_path / "demo").stdout.splitlines()
    assert len([line for line in lines if "x   " in line]) == 2 * 8  # and a head, and maybe a note


@pytest.mark.check
@pytest.mark.skipif(not NVCC, reason="no nvcc")
@pytest.mark.parametrize(
    "name", cases.by_level([name for name in CUDA if "own_kernel" in name], [*CUDA, "demo_cuda.cu"])
)
def test_cuda(name, prefix, tmp_path):
    arch = "-arch=native" if kflib.has_gpu() else "-arch=sm_90"
    strict = ("-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra,-Werror")
    run(NVCC, "-O3", arch, *strict, "-isystem", prefix, EXAMPLES / name, "-o", tmp_path / "example")
    assert run(tmp_path / "example", status=(0,) if kflib.has_gpu() else (NO_GPU,)).stdout.endswith(
        "\n"
    ), "also where there is no GPU"


def linked_with_driver(tmp_path):
    """Linker options for the machine's driver, or for one that prints launches."""
    if kflib.has_gpu():
        return ["-l:libcuda.so.1"]
    fake = ROOT / "tests/support/gpu/fake_libcuda.cpp"
    run(
        "g++",
        "-std=c++17",
        "-shared",
        "-fPIC",
        "-isystem",
        toolkit.include(),
        fake,
        "-o",
        tmp_path / "libcuda.so",
    )
    return ["-L", tmp_path, "-lcuda", f"-Wl,-rpath,{tmp_path}"]


@pytest.mark.check
@pytest.mark.skipif(
    not (toolkit.include() and toolkit.nvrtc_to_link()), reason="no CUDA headers or no NVRTC"
)
@pytest.mark.parametrize(
    "compiler",
    cases.by_level(["g++ -std=c++17"], ["g++ -std=c++17", "g++ -std=c++20", "clang++ -std=c++17"]),
)
def test_nvrtc(compiler, prefix, tmp_path):
    """Builds without nvcc. Without a GPU a fake driver loads and launches each kernel."""
    headers, library = toolkit.nvrtc_to_link()
    words = [w for d in (prefix, toolkit.include(), headers) for w in ("-isystem", d)]
    run(
        *compiler.split(),
        "-O2",
        *WARNINGS,
        *words,
        EXAMPLES / "07_nvrtc.cpp",
        "-o",
        tmp_path / "example",
        library,
        f"-Wl,-rpath,{library.parent}",
        *linked_with_driver(tmp_path),
    )
    done = run(
        "env",
        f"LD_LIBRARY_PATH={library.parent}",
        tmp_path / "example",
        f"-I{prefix}",
        f"-I{toolkit.include()}",
        status=(0,) if kflib.has_gpu() else (1,),
    )
    if kflib.has_gpu():
        assert done.stdout.count("agrees with C\n") == 4
    else:
        launched = [re.sub(r"EEv\w+", "EE", line) for line in done.stderr.splitlines()]
        assert (
            launched == [*LAUNCHED, "free at once", "free at once"]
            and done.stdout.count(", expected ") == 4
        ), done.stderr + done.stdout


@pytest.mark.level(2)
def test_torch_bridge(prefix, tmp_path):
    """Uses headers and library of the installed PyTorch, without a GPU."""
    torch = pathlib.Path(pytest.importorskip("torch").__file__).parent
    run(
        kflib.sys.executable,
        ROOT / "gen/bin/kfgen",
        "runtime",
        "--ops",
        "add",
        "--activations",
        "none,relu",
        "-o",
        tmp_path / "functions.h",
    )
    include = [
        w
        for d in (tmp_path, prefix, torch / "include", torch / "include/torch/csrc/api/include")
        for w in ("-isystem", d)
    ]
    link = [f"-L{torch / 'lib'}", f"-Wl,-rpath,{torch / 'lib'}", "-ltorch_cpu", "-lc10"]
    run(
        "g++",
        "-std=c++17",
        "-O1",
        *WARNINGS,
        *include,
        EXAMPLES / "torch_bridge.cpp",
        "-o",
        tmp_path / "example",
        *link,
    )
    assert run(tmp_path / "example").stdout == (
        "kf_fused_add_activation: b is f64, expected f32 beside a of f32\n"
        "4 of 4 agree with PyTorch\n"
    )


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("0*")), ids=lambda p: p.name)
def test_an_example_is_short_and_says_how_it_is_compiled(path):
    text = path.read_text()
    assert len(text.splitlines()) < 100
    if path.suffix == ".py":
        assert "pip install" in text
    else:
        assert f"{path.name} -o {path.stem}" in text.split("#include")[0]


def test_readme_shows_what_the_examples_print():
    """test_c runs the C program, test_pip the Python one, test_cuda on a GPU the CUDA one."""
    text = (ROOT / "README.md").read_text()
    shown = {
        name: output
        for output, name in re.findall(r"`([^`]*)`<!-- output: examples/(\S+) -->", text)
    }
    assert set(shown) == set(re.findall(r"<!-- file: examples/(\S+) -->", text))
    assert shown["00_cpu.c"] + "\n" == OUTPUTS["00_cpu.c"]
