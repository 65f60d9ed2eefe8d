# SPDX-License-Identifier: Apache-2.0
"""`kfgen runtime --each`: one header per op, in programs of several files, in C and in C++, and all
headers together.
"""

import subprocess

import cases
import kflib
import pytest
import runtime_ops
from kfgen import cli
from kfgen.entries import compositions
from kfgen.entries import spec as specs
from kfgen.interfaces import manifest, runtime
from kfgen.render.render import Selection

# Shown in docs/runtime.md.
ONE = """#define KF_RUNTIME_IMPLEMENTATION
#define KF_RUNTIME_DTYPES (1 << KF_DTYPE_FLOAT32) /* optional: compile f32 alone */
#include <kf/runtime/add.h>
#include <kf/runtime/layer_norm.h>
"""
OTHER = """#include <kf/runtime/layer_norm.h>
#include <kf/runtime/add.h>
#include <stdio.h>
int main(void)
{
    float a[] = {1, -2, 3}, b[] = {1, 1, 1}, out[3];
    const int64_t shape[] = {1, 3};
    const kf_tensor_desc_t row = {shape, NULL, 2, KF_DTYPE_FLOAT32, 0, 0};
    const kf_memory_desc_t of_a = {a, sizeof a, 0}, of_b = {b, sizeof b, 0};
    const kf_memory_desc_t of_out = {out, sizeof out, 0};
    kf_context_t *const ctx = kf_context_create(-1);
    kf_tensor_t *const x = kf_tensor_create_from_memory(ctx, &of_a, &row);
    kf_tensor_t *const y = kf_tensor_create_from_memory(ctx, &of_b, &row);
    kf_tensor_t *const z = kf_tensor_create_from_memory(ctx, &of_out, &row);
    kf_result_t result =
        kf_fused_elementwise_add_activation(ctx, x, y, z, KF_ACTIVATION_RELU, NULL);
    printf("%d %g %g %g", result, out[0], out[1], out[2]);
    result = kf_fused_layer_norm(ctx, z, NULL, NULL, x, NULL, NULL, 0.5, NULL);
    printf(" %d %g %g %d\\n", result, a[0] + a[2], a[1], kf_op_count());
    return kf_tensor_destroy(x) || kf_tensor_destroy(y) || kf_tensor_destroy(z) ||
           kf_context_destroy(ctx);
}
"""
CHOSEN = ["--ops", "add,layer_norm", "--dtypes", "f32", "--activations", "none,relu"]


@pytest.fixture(scope="module")
def headers(tmp_path_factory):
    out = tmp_path_factory.mktemp("each")
    assert cli.main(["runtime", "--each", *CHOSEN, "-o", str(out)]) == 0
    return out


@pytest.mark.parametrize(
    "compiler",
    cases.by_level(["gcc -std=c11"], ["gcc -std=c11", "g++ -std=c++17 -xc++", "clang -std=c11"]),
)
def test_two_headers_in_two_files(headers, compiler, tmp_path):
    assert sorted(p.name for p in (headers / "kf/runtime").iterdir()) == [
        "add.h",
        "all.h",
        "layer_norm.h",
    ]
    objects = []
    for name, text in (("one", ONE), ("other", OTHER)):
        (tmp_path / f"{name}.c").write_text(text)
        include = [
            f"-I{headers}",
            *(word for d in kflib.render(kflib.ROOT / "build/tests") for word in ("-isystem", d)),
        ]
        subprocess.run(
            [
                *compiler.split(),
                "-O1",
                "-Wall",
                "-Wextra",
                "-Wshadow",
                "-Wconversion",
                "-Werror",
                *include,
                "-c",
                tmp_path / f"{name}.c",
                "-o",
                tmp_path / f"{name}.o",
            ],
            check=True,
        )
        objects.append(tmp_path / f"{name}.o")
    subprocess.run([compiler.split()[0], *objects, "-o", tmp_path / "program", "-lm"], check=True)
    printed = subprocess.run(
        [tmp_path / "program"], capture_output=True, text=True, check=True
    ).stdout
    assert printed == "0 2 0 4 0 1.1239 -1.1239 8\n"


def test_definitions_after_declarations(headers, tmp_path):
    """A file that has the declarations through its own header may still request the definitions, of
    one header and of all.
    """
    for name in ("add", "all"):
        text = (
            f"#include <kf/runtime/{name}.h>\n#define KF_RUNTIME_IMPLEMENTATION\n"
            + 2 * f"#include <kf/runtime/{name}.h>\n"
        )
        (tmp_path / "one.c").write_text(text)
        include = [
            f"-I{headers}",
            *(word for d in kflib.render(kflib.ROOT / "build/tests") for word in ("-isystem", d)),
        ]
        subprocess.run(
            [
                "gcc",
                "-std=c11",
                "-Wall",
                "-Wextra",
                "-Werror",
                *include,
                "-c",
                tmp_path / "one.c",
                "-o",
                tmp_path / "one.o",
            ],
            check=True,
        )
        names = subprocess.run(
            ["nm", "--defined-only", tmp_path / "one.o"], capture_output=True, text=True, check=True
        ).stdout
        assert {"kf_context_create_abi", "kf_fused_add_activation_with"} <= set(names.split())
    # Flag R: lld's --gc-sections must keep the list that finds functions by name.
    sections = subprocess.run(
        ["readelf", "-SW", tmp_path / "one.o"], capture_output=True, text=True, check=True
    ).stdout
    kept = [line.split() for line in sections.splitlines() if " kf_rt_ops " in line]
    assert kept and all("R" in words[words.index("PROGBITS") + 5] for words in kept), sections


def test_every_op_has_a_header():
    """The separate headers together declare the functions of the single header, each once; all.h
    includes them all. No op is named like one of kf's own headers.
    """
    everything = kflib.manifest()
    found, whole = runtime.each(everything), runtime.render(everything, "ops.h")
    ops = {f["op"] for f in everything["functions"] if runtime_ops.takes_handles(f)}
    assert len(found) == len(ops) + len(compositions.load()) + 1 and all(
        f'#include "{name}"' in found[runtime.ALL] for name in found if name != runtime.ALL
    )
    declared = [
        line
        for text in found.values()
        for line in text.splitlines()
        if line.startswith("kf_result_t kf_fused_") and line.endswith(";")
    ]
    assert sorted(declared) == sorted(
        line
        for line in whole.splitlines()
        if line.startswith("kf_result_t kf_fused_") and line.endswith(";")
    )
    inline = [
        line
        for text in found.values()
        for line in text.splitlines()
        if line.startswith("static inline kf_result_t kf_fused_")
    ]
    assert sorted(inline) == sorted(
        line
        for line in whole.splitlines()
        if line.startswith("static inline kf_result_t kf_fused_")
    )


def test_a_name_of_kf_s_own_is_refused(tmp_path, capsys):
    spec = tmp_path / "own.toml"
    spec.write_text(
        '[op.copy]\nbrief = "x"\noperands = { x = "elem" }\nexpr = "x * 1"\nref = "x * 1"\n'
    )
    assert (
        cli.main(["runtime", "--each", "--spec", str(spec), "--ops", "add", "-o", str(tmp_path)])
        == 1
    )
    assert (
        "--each: kf/runtime/copy.h is a header of kf's own: "
        "rename the op, or leave it out with --ops" in capsys.readouterr().err
    )
    with pytest.raises(ValueError, match="kf/runtime/copy.h is a header of kf's own"):
        runtime.each(manifest.build(Selection(specs.load([str(spec)]), ["add"]), "own"))
