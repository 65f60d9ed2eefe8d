# SPDX-License-Identifier: Apache-2.0
"""A family of a user's own whose functions have a shape struct (tests/families/conv1d): every
interface has it with nothing of kf changed. Numbers in C and in the emulation, errors, NVRTC,
launchers with C linkage, functions on tensors, kf.ops, PyTorch, the manifest and the reference.
"""

import importlib
import json
import os
import subprocess
import sys

import checks
import emulator
import from_manifest
import kflib
import launch_steps
import numpy as np
import nvrtc
import pytest
import refusals
import size_rules
import toolkit
from storage import EPS, from_float, to_float

pytestmark = pytest.mark.xdist_group("shape structs")  # whose headers are made once
FOLDER = kflib.ROOT / "tests/families/conv1d"
EXACT = ("-O1", "-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror")
# Shapes as the struct has them; 0 of an option is its default. bounds: of packed sequences.
SHAPES = [
    {"batch": 2, "length": 9, "channels": 4, "filters": 6, "kernel": 3},
    {"batch": 1, "length": 11, "channels": 6, "filters": 3, "kernel": 2, "stride": 3, "groups": 3},
    {"batch": 3, "length": 7, "channels": 2, "filters": 2, "kernel": 4, "stride": 2, "pad_left": 3,
     "pad_right": 1, "dilation": 2, "groups": 2},
    {"batch": 2, "length": 1, "channels": 1, "filters": 130, "kernel": 1, "pad_right": 5},
    {"batch": 1, "length": 2, "channels": 1, "filters": 1, "kernel": 3},
]  # fmt: skip
PACKED = [
    ((0, 4, 4, 9), {"channels": 4, "filters": 6, "kernel": 3, "pad_left": 2}),
    ((0, 1, 8), {"channels": 2, "filters": 4, "kernel": 2, "dilation": 3, "groups": 2}),
    # Rows of no sequence; a bound outside.
    ((2, 5, 30), {"channels": 1, "filters": 3, "kernel": 5, "pad_left": 4, "dilation": 2}),
]


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """(functions, include directories, words that name the family)."""
    folder, words = tmp_path_factory.mktemp("conv1d"), ["--family", FOLDER]
    made = kflib.kfgen("render", *words, "--out", folder / "include")
    assert made.returncode == 0, made.stderr
    listed = json.loads(kflib.kfgen("list", "--json", "--ops", "bias", *words).stdout)
    return (
        [f for f in listed["functions"] if f["family"] == "conv1d"],
        [kflib.ROOT / "include", kflib.rendered(), folder / "include", FOLDER / "include"],
        words,
    )


@pytest.fixture(scope="module")
def family():
    """The family, loaded for the tests of this module."""
    from kfgen import families

    before = set(sys.modules)
    found = families.load(FOLDER)
    yield found
    del families.FAMILIES[found.name], families.OWN[FOLDER]
    for name in [n for n in sys.modules if n not in before and n.startswith("kfgen.families.")]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def reference(family):
    """The family's oracle."""
    return importlib.import_module("kfgen.families.conv1d.reference")


class Call:
    """A function's tensors, side by side in one block of memory.

    Args:
        without: outputs and inputs that are NULL.
    """

    def __init__(self, f, shape, bounds=None, without=()):
        self.f, self.shape, self.bounds, self.without = f, dict(shape), bounds, without
        if bounds:
            self.shape |= {"batch": len(bounds) - 1, "length": 9}
        self.rng, self.dtype = np.random.default_rng(3), f["dtypes"][0]
        at = {a["name"]: a["default"] or 0 for a in self.fields}
        at |= {name: n for name, n in self.shape.items() if n}
        self.at = at
        self.tensors = [a for a in f["arguments"] if "use" in a]
        self.extents = {a["name"]: self.extent(a) for a in self.tensors}
        self.arrays = {a["name"]: self.draw(a) for a in self.tensors}

    @property
    def fields(self):
        return next(a["fields"] for a in self.f["arguments"] if a["role"] == "shape")

    def extent(self, a):
        return tuple(size_rules.shape(a, self.at))

    def draw(self, a):
        if a["kind"] == "offsets":
            return np.array(self.bounds, {"i64": np.int64, "i32": np.int32}[a["dtype"]])
        shape = self.extents[a["name"]]
        if a["role"] != "in":
            return np.full(int(np.prod(shape)) * kflib.SIZE[a["dtype"]], 0xA5, np.uint8)  # poisoned
        return from_float(self.rng.standard_normal(shape), a["dtype"])

    def run(self, lib, memory):
        """Returns {output: array}."""
        image, offsets, spans = [], {}, []
        at = 0
        for name, array in self.arrays.items():
            flat = array.reshape(-1).view(np.uint8)
            offsets[name] = at
            spans.append((at, at + flat.size))
            at += (flat.size + 255) // 256 * 256 + 256
            image.append(
                np.concatenate([flat, np.full(at - offsets[name] - flat.size, 0x5A, np.uint8)])
            )
        memory.spans = spans
        whole = np.concatenate(image)

        def call(base):
            given = {n: None if n in self.without else base + where for n, where in offsets.items()}
            return lib.call(self.f, self.shape | given | {"workspace": None, "workspace_bytes": 0})

        code, back = memory.run(whole, call)
        assert code == 0, lib.detail
        found = {}
        for a in self.tensors:
            begin = offsets[a["name"]]
            got = back[begin : begin + self.arrays[a["name"]].nbytes]
            if a["role"] == "in" or a["name"] in self.without:
                kept = self.arrays[a["name"]].reshape(-1).view(np.uint8)
                assert (got == kept).all(), a["name"]
            else:
                array = np.ascontiguousarray(got).view(from_float(np.zeros(1), a["dtype"]).dtype)
                found[a["name"]] = to_float(array, a["dtype"]).reshape(self.extents[a["name"]])
        return found

    def expected(self, reference):
        """{output: (value, sum of the terms' magnitudes)}."""
        names = ("stride", "pad_left", "pad_right", "dilation", "groups")
        bounds = self.bounds and tuple(np.clip(self.bounds, 0, self.at["length"]))
        o = reference.Options(**{n: self.at[n] for n in names}, packed=bounds)

        def both(how):
            x = {
                n: how(to_float(v, self.dtype))
                for n, v in self.arrays.items()
                if v.dtype not in (np.int64, np.int32) and n in ("x", "weight", "bias", "dout")
            }
            if not self.f["bwd"]:
                bias = None if "bias" in self.without else x["bias"]
                return [reference.forward(x["x"], x["weight"], bias, o)]
            return reference.backward(x["x"], x["weight"], x["dout"], o)

        outputs = [a["name"] for a in self.tensors if a["role"] != "in"]
        return dict(zip(outputs, zip(both(np.asarray), both(np.abs))))

    def check(self, lib, memory, reference):
        got, wanted = self.run(lib, memory), self.expected(reference)
        assert got.keys() == wanted.keys() - set(self.without)
        eps = {"f16": 2.0**-11, "bf16": 2.0**-8}.get(self.dtype, 0.0)
        for name, value in got.items():
            want, size = wanted[name]
            terms = self.at["kernel"] * max(self.at["channels"], self.at["filters"]) + max(
                want.size, 30
            )
            bound = terms * EPS["f64" if self.dtype == "f64" else "f32"] * size
            bound = bound + eps * np.abs(want) + 2.0**-24
            right = (np.abs(value - want) <= bound) | (np.isnan(value) & np.isnan(want))
            assert value.shape == want.shape and right.all(), (self.f["name"], name, self.shape)


@pytest.fixture(scope="module", params=["cpu", "emu"])
def backend(request, own, tmp_path_factory):
    """(library, memory)."""
    functions, include, _ = own
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "cpu":
        return (
            kflib.build("cpu", functions, folder, EXACT, include=include),
            checks.CpuMemory(1 << 20),
        )
    if not toolkit.include():
        pytest.skip("no CUDA headers")
    lib = emulator.build(functions, folder, include=include)
    return lib, emulator.Memory(emulator.Emulator(lib), size=1 << 20)


@pytest.mark.check
def test_numbers(own, backend, reference):
    functions, _, _ = own
    assert {(f["op"], f["bwd"], *f["dtypes"]) for f in functions} == {
        (op, bwd, d, *index)
        for bwd in (False, True)
        for d in ("f32", "f16", "bf16", "f64")
        for op, index in (("conv1d", ()), ("conv1d_varlen", ()), ("conv1d_varlen", ("i32",)))
    }
    for f in functions:
        packed = f["op"].endswith("_varlen")
        for shape in PACKED if packed else SHAPES:
            bounds, shape = shape if packed else (None, shape)
            for without in [(), ("bias", "dx"), ("dweight",)]:
                Call(f, shape, bounds, without).check(*backend, reference)


WRONG = [
    ({"length": -1}, "length is -1, expected 0 to 2^58"),
    ({"stride": -2}, "stride is -2, expected 0 to 2^58"),
    ({"groups": 3}, "groups is 3, expected a divisor of channels, 4"),
    ({"groups": 4}, "groups is 4, expected a divisor of filters, 6"),
    ({"dilation": 20}, "shape gives out no shape, expected dimensions of at least 0 and at most "),
    ({"pad_left": 2**58, "batch": 2**20}, "shape gives out no shape, expected dimensions of "),
    ({"length": 2**57, "channels": 2**40}, "shape gives x no shape, expected dimensions of at "),
]


@pytest.mark.check
def test_errors(own, backend):
    """Nothing is read or written before the struct is checked."""
    functions, _, _ = own
    lib, _ = backend
    f = next(f for f in functions if f["name"] == "kf_conv1d_f32")
    name = f["cpu_name" if lib.backend == "cpu" else "name"]
    given = dict.fromkeys([a["name"] for a in f["arguments"] if "use" in a])
    for more, text in WRONG:
        code = lib.call(f, SHAPES[0] | given | more)
        assert (code, lib.detail[: len(name) + 2]) == (2, f"{name}: "), (more, lib.detail)
        assert lib.detail.partition(": ")[2].startswith(text), (more, lib.detail)
    assert lib.call(f, given | {"shape": None}) == 1
    assert lib.detail == f"{name}: shape is NULL, expected a pointer to the sizes"
    assert lib.call(f, SHAPES[0] | given) == 1 and "x is NULL" in lib.detail
    assert lib.call(f, given) == 0  # all sizes are 0
    packed = next(f for f in functions if f["name"] == "kf_conv1d_varlen_f32")
    given = dict.fromkeys([a["name"] for a in packed["arguments"] if "use" in a])
    assert lib.call(packed, SHAPES[0] | given | {"stride": 2}) == 2
    assert "stride is 2, expected 1 for packed sequences" in lib.detail
    backward = next(f for f in functions if f["name"] == "kf_conv1d_bwd_f32")
    assert lib.workspace_bytes(backward, [1, 2, 3, 4, 5]) == 0


@pytest.mark.check
def test_check(own):
    """The oracle, which multiplies matrices, agrees with the sums of the entry's expression."""
    found = kflib.kfgen("check", *own[2])
    assert found.returncode == 0 and "2 ops with" in found.stdout, found.stderr


def test_manifest(own):
    functions, _, _ = own
    f = next(f for f in functions if f["name"] == "kf_conv1d_bwd_bf16")
    shape = next(a for a in f["arguments"] if a["role"] == "shape")
    assert (shape["struct"], shape["ctype"]) == ("kf_conv1d_t", "const kf_conv1d_t *")
    assert (shape["memory"], shape["null"]) == ("host", "")
    assert [x["name"] for x in shape["fields"] if x["role"] == "size"] == f["sizes"]
    options = {x["name"]: (x["default"], x["divides"]) for x in shape["fields"]}
    assert options["stride"] == (1, []) and options["groups"] == (1, ["channels", "filters"])
    assert options["batch"] == (None, []) and f["workspace_arguments"] == ["shape"]
    page = (kflib.ROOT / "docs/manifest.md").read_text()
    for name in shape["fields"][0]:
        assert f"- `{name}`: " in page, name
    assert not any(a["role"] in ("size", "integer") for a in f["arguments"])


@pytest.mark.skipif(not toolkit.nvrtc(), reason="no NVRTC")
def test_nvrtc(own):
    """The kernels compile at run time; the struct is for the host."""
    functions, include, _ = own
    some = [f for f in functions if f["dtypes"] in (["f32"], ["bf16", "i32"])]
    text = "".join(f'#include "{h}.cuh"\n' for h in dict.fromkeys(f["header"] for f in some))
    names = [name for f in some for name in launch_steps.kernels(f)]
    _, lowered, log = nvrtc.compile_text(text, names, include, options=nvrtc.quick())
    assert len(lowered) == len(some) == 6 and "warning" not in log, log


def test_launchers(own, tmp_path):
    """Functions with C linkage, for CUDA and beside those of C: the struct is defined once."""
    _, include, _ = own
    text = """#include "kf/conv1d.h"
        #include "kf/kf_conv1d_launchers.h"
        #include "kf/kf_conv1d_launchers.h"
        int main(void)
        {
            const kf_conv1d_t shape = {0};
            (void)kf_cpu_conv1d_f32(0, 0, 0, 0, &shape);
            return (int)kf_conv1d_bwd_f32_workspace_bytes(&shape) +
                   (int)kf_conv1d_f32(0, 0, 0, 0, &shape, 0);
        }"""
    (tmp_path / "program.c").write_text(text)
    command = ["gcc", "-fsyntax-only", *EXACT[1:], *(f"-I{d}" for d in include)]
    done = subprocess.run(
        [*command, tmp_path / "program.c"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.check
@pytest.mark.skipif(not toolkit.include(), reason="no CUDA headers")
def test_packed_cuda(family, tmp_path):
    """The launchers that Python calls on a GPU fill in the struct from sizes and options."""
    from kfgen.entries import spec as specs
    from kfgen.interfaces import manifest, packed_cuda
    from kfgen.render.render import Renderer, Selection, write_all

    chosen = Selection(specs.load([FOLDER / "ops.toml"]), ["bias"], dtypes=["f32"])
    found = [x for x in packed_cuda.functions(manifest.build(chosen)) if "conv1d" in x[0]]
    assert len(found) == 4
    texts = {n: t for n, t in packed_cuda.sources(found).items() if "table" not in n}
    fields = ", ".join(f"n[{i}]" for i in range(10))
    for text in texts.values():
        assert text.count(f"const kf_conv1d_t kfi_sizes = {{{fields}}};") == 3
    write_all(Renderer(chosen, any_activation=False).render(), tmp_path, [])
    write_all(texts, tmp_path, [])
    native = kflib.ROOT / "frontends/python/kernel_fusion/native"
    include = (native, tmp_path, kflib.ROOT / "include", FOLDER / "include")
    command = ["g++", "-std=c++17", "-DKFP_CUDA", "-fsyntax-only", "-Wall", "-Werror"]
    command += [*(f"-I{d}" for d in include), "-isystem", toolkit.include()]
    done = subprocess.run(
        [*command, *(tmp_path / n for n in texts)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def printed(reference):
    """Lines that tensors.c prints."""
    x, weight = np.arange(10.0).reshape(1, 5, 2), np.arange(1.0, 5.0).reshape(2, 2, 1)
    bias, o = np.array([1.0, -1.0]), reference.Options(groups=2)
    out = reference.forward(x, weight, bias, o)
    dx, dweight, dbias = reference.backward(x, weight, out, o)
    packed = reference.Options(pad_left=1, groups=2, packed=(0, 2, 4))
    packed = reference.forward(x[0, :4], weight, None, packed)
    found = {"forward": out, "backward": dx, "weights": dweight, "bias": dbias, "packed": packed}
    lines = [f"{n}: 0 {' '.join(f'{v:g}' for v in a.reshape(-1))}" for n, a in found.items()]
    return [
        *lines,
        "stride: 12 kf_fused_conv1d: out is [1, 4, 2], expected [1, 2, 2]",
        "negative: 2 kf_cpu_conv1d_f64: pad_left is -3, expected 0 to 2^58",
    ]


@pytest.mark.check
def test_tensors(own, reference, tmp_path):
    """Functions on tensors."""
    _, include, words = own
    made = kflib.kfgen(
        "runtime", *words, "--ops", "bias", "--dtypes", "f64", "-o", tmp_path / "functions.h"
    )
    assert made.returncode == 0, made.stderr
    command = [
        "gcc",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        *(f"-I{d}" for d in [tmp_path, *include]),
    ]
    program = [FOLDER / "tensors.c", "-o", tmp_path / "program", "-lm", "-lpthread"]
    done = subprocess.run([*command, *program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = subprocess.run([tmp_path / "program"], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout.splitlines()) == (0, printed(reference))


@pytest.mark.check
@pytest.mark.parametrize("script, compiler", [("numpy", True), ("numpy", False), ("torch", True)])
def test_python(script, compiler, tmp_path):
    """kf.ops: on arrays, compiled and interpreted, and on PyTorch's tensors."""
    if script == "torch":
        pytest.importorskip("torch")
    runner = kflib.ROOT / "tests/support/python/own_family.py"
    cache = kflib.ROOT / "build/tests/python/cache" if compiler else tmp_path / "cache"
    env = os.environ | {"KF_CACHE_DIR": str(cache)} | ({} if compiler else {"PATH": "", "CC": ""})
    done = subprocess.run(
        [sys.executable, runner, FOLDER, tmp_path / "package", FOLDER / f"in_{script}.py"],
        capture_output=True,
        text=True,
        env=env,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert ("NumPy computes CPU functions" in done.stderr) == (not compiler), done.stderr


def test_docs(family):
    """The reference page has the struct once, and the ops' signatures."""
    from kfgen.entries import spec as specs
    from kfgen.render import docs
    from kfgen.render.render import Selection

    page = docs.pages(Selection(specs.load([FOLDER / "ops.toml"]), ["bias"]))["conv1d.md"]
    assert page.count('## <a name="kf_conv1d_t"></a>`kf_conv1d_t`') == 1
    assert "| `groups` | groups of channels; divides channels, filters | 1 |" in page
    assert "| `batch` | sequences | |" in page
    assert "const kf_conv1d_t *shape[, cudaStream_t stream]);" in page


DRAWERS = (
    ("test_pointers", ("valid_call", "null", "misaligned_to_the_element", "before_the_workspace")),
    ("test_overlap", ("overlap", "what_is_not_read_may_lie_anywhere")),
)


@pytest.mark.check
@pytest.mark.parametrize("backend", ["cpu"], indirect=True)
def test_refusals(own, backend, monkeypatch):
    """The tests of pointers and overlap of kf's own functions take these functions as they are."""
    lib, _ = backend
    functions = [f for f in own[0] if f["dtypes"] == ["f32"] and f["op"] == "conv1d"]
    assert len(functions) == 2
    monkeypatch.setattr(refusals, "extents", lambda f: (2, 5, 4, 6, 3))
    for module, tests in DRAWERS:
        found = importlib.import_module(f"tests.errors.{module}")
        for name in tests:
            run = [v for n, v in vars(found).items() if n.startswith("test_") and n.endswith(name)]
            assert len(run) == 1, name
            run[0](lib, functions)


@pytest.mark.check
def test_manifest_is_enough(own, tmp_path):
    """A program made from the manifest alone calls both directions."""
    functions, include, _ = own
    some = [f for f in functions if f["dtypes"] == ["f64"] and f["op"] == "conv1d"]
    sizes = from_manifest.sizes_of(some[0], {"x": (2, 9, 4), "weight": (6, 3, 4)})
    assert sizes == dict(zip(some[0]["sizes"], (2, 9, 4, 6, 3)))
    assert "int64_t stride, int64_t pad_left, int64_t pad_right" in from_manifest.fused(some[0])
    lines = [line for f in some for line in from_manifest.step(len(f["name"]), f, sizes)]
    calls = " || ".join(f"step_{len(f['name'])}(0, 0)" for f in some)
    space = from_manifest.workspace_arguments(some[1], sizes)[0]
    text = [f'#include "{some[0]["header"]}.h"', "#include <stdlib.h>", *lines]
    text += ["int main(void)", "{", f"    if ({calls}) return 1;"]
    text += [f"    return (int){some[1]['cpu_workspace']}({space});", "}"]
    text = [line for line in text if not line.startswith("static size_t")]
    (tmp_path / "program.c").write_text("\n".join(text))
    command = ["gcc", "-O1", "-Wall", "-Werror", *(f"-I{d}" for d in include)]
    made = [*command, tmp_path / "program.c", "-o", tmp_path / "program", "-lm"]
    done = subprocess.run(made, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert subprocess.run([tmp_path / "program"], check=False).returncode == 0
