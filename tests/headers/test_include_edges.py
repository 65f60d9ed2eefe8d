# SPDX-License-Identifier: Apache-2.0
"""Tests that dependencies point one way: examples, bench, tests, frontends -> runtime -> ops ->
core, and kfgen -> templates, spec. include/kf depends on no framework."""

import ast
import pathlib
import re
import sys

import folders
import pytest
from kflib import ROOT

# Foreign headers that include/kf may include: the C library's, and those of CUDA's runtime and
# driver.
ALLOWED = {
    "stdint.h",
    "stddef.h",
    "stdarg.h",
    "stdio.h",
    "string.h",
    "math.h",
    "unistd.h",
    "limits.h",
    "float.h",
    "cuda_runtime.h",
    "cuda_fp16.h",
    "cuda_bf16.h",
    "cuda.h",
    "vector_types.h",
}
# System headers that the runtime may include as well.
SYSTEM = {"stdlib.h", "pthread.h", "time.h"}
# Layers that each layer of include/kf may include. The umbrellas, kf/kf.h, kf/kf.cuh and a user's,
# belong to the layer kf.
LAYERS = {
    "core": {"core"},
    "ops": {"core", "ops"},
    "any": {"core", "ops", "any"},
    "user": {"core", "ops", "user"},
    "runtime": {"core", "ops", "any", "user", "runtime", "kf"},
    "kf": {"core", "ops", "user", "runtime"},
}
# (former path, the header that it includes)
FORWARDS = {("kf/core/rope_table.h", "kf/rope_table.h")}
SHARED_WITH_C = {"dtype.h"}  # the one C header that may name CUDA's types
# Modules of the repository that each folder's Python may import. kfgen renders with jinja2 as its
# only third-party module.
PYTHON = {
    "gen/kfgen": {"kfgen"},
    "gen/fit": set(),
    "frontends": {"kfgen", "frontends"},
    "bench": {"kfgen", "bench", "frontends", "tests/support"},
    "tests": None,
}
THIRD = {"gen/kfgen": {"jinja2", "numpy", "scipy"}}


def layer_of(path):
    """Layer of an include path such as kf/ops/add.h, or of a template."""
    parts = pathlib.PurePath(path).parts
    return parts[1] if len(parts) > 2 else "kf"


def includes_of(text):
    """Included headers of C text or a template. Names with holes are skipped, because rendered
    headers are checked too."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)  # comments may show how to include a header
    return [
        t for t in re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', text, re.M) if "{" not in t
    ]


def wrong_includes(path, text, exists=lambda target: True):
    """Wrong includes of one header, given by its include path."""
    layer, wrong = layer_of(path), []
    for target in includes_of(text):
        own = target.startswith("kf/")
        if not own and target not in (ALLOWED | SYSTEM if layer == "runtime" else ALLOWED):
            wrong.append(f"{path}: {target} is none of {sorted(ALLOWED)}")
        if own and not exists(target):
            wrong.append(f"{path}: {target} does not exist")
        if own and layer_of(target) not in LAYERS[layer] and (path, target) not in FORWARDS:
            wrong.append(f"{path}: {layer} includes {target}")
        # The runtime serves both devices in one file, and includes CUDA's headers if nvcc compiles
        # it.
        cuda = target.endswith(".cuh") or (
            target.startswith("cuda_") and pathlib.PurePath(path).name not in SHARED_WITH_C
        )
        if path.endswith(".h") and layer != "runtime" and cuda:
            wrong.append(f"{path}: a C header includes {target}")
    return wrong


def test_headers(include):
    ours = [
        (p.relative_to(d).as_posix(), p)
        for d in include
        for p in sorted((d / "kf").rglob("*"))
        if p.suffix in (".h", ".cuh")
    ]
    assert len(ours) > 50
    wrong = [
        w
        for name, p in ours
        for w in wrong_includes(
            name, p.read_text(), lambda t: any((d / t).is_file() for d in include)
        )
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("kf/core/a.h", '#include "kf/ops/add.h"'),
        ("kf/core/a.h", "#include <vector>"),
        ("kf/ops/a.h", '#include "kf/kf.h"'),
        ("kf/ops/a.h", "#include <kf/runtime/context.h>"),
        ("kf/ops/a.h", '#include "kf/ops/add.cuh"'),
        ("kf/core/a.h", "# include <cuda_fp16.h>"),
        ("kf/core/a.cuh", "#include <torch/extension.h>"),
        ("kf/core/a.cuh", "#include <cub/cub.cuh>"),
    ],
)
def test_a_wrong_edge_is_seen(path, line):
    assert len(wrong_includes(path, line + "\n")) == 1


def without_comments(text):
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)


def unreached_macros(texts):
    """Returns {header: macros} that a header uses and another one defines, which it does not
    include, itself or through others. `texts`: {header: text}. Skips parts of headers, which have
    no include guard of their own."""
    texts = {name: without_comments(text) for name, text in texts.items()}
    guard = re.compile(r"#ifndef (KF_\w+_C?U?H)\n#define \1\n")
    defined = {}
    for name, text in texts.items():
        for macro in re.findall(r"^\s*#\s*define\s+(\w+)", text, re.M):
            defined.setdefault(macro, set()).add(name)

    def reached(name, found):
        if name in texts and name not in found:
            found.add(name)
            for target in includes_of(texts[name]):
                reached(target, found)
        return found

    wrong = {}
    for name, text in texts.items():
        tests = r"^\s*#\s*(?:if|elif|ifdef|ifndef|undef)\b.*$"  # they may name undefined macros
        words = set(re.findall(r"\w+", re.sub(tests, "", text, flags=re.M)))
        known = reached(name, set())
        unknown = {w for w in words & defined.keys() if not defined[w] & known}
        if unknown and guard.search(text):
            wrong[name] = unknown
    return wrong


def test_a_header_includes_what_it_uses():
    core = (ROOT / "include/kf/core").rglob("*.*h")
    texts = {p.relative_to(ROOT / "include").as_posix(): p.read_text() for p in core}
    assert unreached_macros(texts) == {}
    operand = texts["kf/core/operand.h"].replace('#include "kf/core/config.h"\n', "")
    seeded = unreached_macros({**texts, "kf/core/operand.h": operand})
    assert seeded == {"kf/core/operand.h": {"KFI_HOST"}}


def test_the_order_of_core():
    """The headers of core form no cycle."""
    graph = {
        p.relative_to(ROOT / "include").as_posix(): [
            t for t in includes_of(p.read_text()) if t.startswith("kf/core/")
        ]
        for p in (ROOT / "include/kf/core").rglob("*.*h")
    }
    done, path = set(), []

    def visit(name):
        assert name not in path, f"a circle: {' -> '.join(path[path.index(name) :])} -> {name}"
        if name not in done:
            path.append(name)
            for below in graph[name]:
                visit(below)
            done.add(path.pop())

    for name in graph:
        visit(name)


def own_modules():
    """Returns {module: folder} of the Python modules that can be imported by name."""
    found = {"kfgen": "kfgen", "kernel_fusion": "frontends", "conftest": "tests"}
    for folder in ("bench", "tests/headers"):
        found |= {p.stem: folder for p in (ROOT / folder).glob("*.py")}
    for folder in folders.PATHS:
        found |= {p.stem: "tests/support" for p in pathlib.Path(folder).glob("*.py")}
    return found


def imports_of(text):
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {a.name.split(".")[0] for a in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add(node.module.split(".")[0])
    return names


def test_python():
    modules, wrong, seen = own_modules(), [], 0
    assert not modules.keys() & sys.stdlib_module_names, "modules hide those of Python"
    for folder, allowed in PYTHON.items():
        for path in (ROOT / folder).rglob("*.py") if allowed is not None else ():
            for name in sorted(imports_of(path.read_text())):
                seen += 1
                beside = (path.parent / f"{name}.py").exists()
                own = modules.get(name)
                if own and not beside and own not in allowed:
                    wrong.append(f"{path.relative_to(ROOT)} imports {name} of {own}")
                if (
                    not own
                    and not beside
                    and folder in THIRD
                    and name not in sys.stdlib_module_names
                    and name not in THIRD[folder]
                ):
                    wrong.append(
                        f"{path.relative_to(ROOT)} imports {name}, which is none of "
                        f"{sorted(THIRD[folder])}"
                    )
    assert seen > 50 and not wrong, "\n".join(wrong)


def test_rendering_needs_jinja2_alone():
    """`make install` asks for nothing else: what needs NumPy is imported by `kfgen check` alone."""
    lazy = {"check.py", "check_activations.py", "differences.py", "notes.py", "reference.py"}
    for path in (ROOT / "gen/kfgen").rglob("*.py"):
        if path.name in lazy:
            continue
        top = {
            a.name
            for n in ast.parse(path.read_text()).body
            if isinstance(n, ast.Import)
            for a in n.names
        }
        inner = {
            word
            for n in ast.parse(path.read_text()).body
            if isinstance(n, ast.ImportFrom)
            for word in (n.module, *(f"{n.module}.{a.name}" for a in n.names))
        }
        assert not (top | inner) & {
            "numpy",
            "scipy",
            "scipy.special",
            "kfgen.check",
            "kfgen.check_activations",
            "kfgen.differences",
            "kfgen.notes",
        } and not [name for name in inner if name.endswith(".reference")], path


def test_nothing_below_names_what_is_above():
    """The library's files do not include or import tests, benchmarks, examples or frontends."""
    for folder in ("include", "templates", "gen/kfgen/entries"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file():
                for target in includes_of(path.read_text()):
                    assert not target.startswith(
                        ("tests/", "bench/", "examples/", "frontends/", ".")
                    ), f"{path}: {target}"
                assert not re.search(
                    r"\b(import|from) (kflib|checks|bench|peers|torch|jax)\b", path.read_text()
                ), path


def test_examples_use_what_users_have():
    """Examples include umbrellas, op headers and a user's own headers, and of core only what is
    documented for user kernels."""
    for path in sorted((ROOT / "examples").iterdir()):
        for target in (
            includes_of(path.read_text()) if path.suffix in (".c", ".cu", ".h", ".cpp") else ()
        ):
            assert not target.startswith(("../", "include/", "gen/", "tests/")), (
                f"{path.name}: {target}"
            )
