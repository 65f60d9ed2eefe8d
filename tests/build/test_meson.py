# SPDX-License-Identifier: Apache-2.0
"""Meson: kf's own build, and kf as a subproject of a C and a CUDA project, with ops of the parent's
own."""

import hashlib
import json

import pytest
import ways
from kfgen import paths
from ways import MESON, edit, run

pytestmark = ways.needs_meson

STRICT = ("-Dwarning_level=3", "-Dwerror=true", "-Dc_std=c11")
OTHER = """
#include <kf/ops/bias.h>
int main(void) { return kf_cpu_bias_f32(NULL, NULL, NULL, 0, 0); }
"""
SPEC = """
[op."{act}_layer_scale"]
brief = "residual + gamma * act(x)"
operands = { x = "elem", gamma = "row", residual = "elem" }
expr = "residual + gamma * act(x)"
ref = "residual + gamma * act(x)"
source = "Touvron et al. 2021, LayerScale (arXiv:2103.17239)"
"""
OWN = """
#include "my_ops.h"
#include <stdio.h>
int main(void)
{
    const float x[2] = {1, -2}, gamma[2] = {0.5f, 10}, residual[2] = {1, 1}, dout[2] = {1, 1};
    float out[2], dx[2];
    _Alignas(256) char workspace[256];
    if (kf_cpu_relu_layer_scale_f32(x, gamma, residual, out, 1, 2) != KF_SUCCESS) return 1;
    if (kf_cpu_relu_layer_scale_bwd_f32(x, gamma, NULL, dout, dx, NULL, NULL, 1, 2, workspace,
                                        sizeof workspace) != KF_SUCCESS)
        return 2;
    printf("%g %g, %g %g\\n", (double)out[0], (double)out[1], (double)dx[0], (double)dx[1]);
    return 0;
}
"""
OWN_CUDA = """
#include "my_ops.cuh"
kf_result_t call(const kf_f16 *x, kf_f16 *y, cudaStream_t stream);
kf_result_t call(const kf_f16 *x, kf_f16 *y, cudaStream_t stream)
{
    return kf_gelu_layer_scale_f16(x, x, x, y, 2, 2, stream);
}
"""


def with_checkout(project):
    """Makes a checkout the parent's subprojects/kf, which a test may edit, and returns it."""
    kf = ways.copy(project / "subprojects/kf")
    (project / "subprojects/kf.wrap").write_text(ways.snippet("wrap-checkout"))
    return kf


def ninja(project):
    return run("ninja", "-v", "-C", "build", cwd=project)


def setup(project, *options):
    run(MESON, "setup", "build", *options, cwd=project)


@pytest.mark.level(2)
def test_install(checkout, tmp_path):
    """Runs the page's commands, without the tests, which would run pytest here."""
    ways.shell(
        ways.snippet("meson-install", [("-Dops", "-Dtests=disabled -Dops")]), checkout, tmp_path
    )
    prefix = tmp_path / ".local"
    assert {p.name for p in (prefix / "include/kf/ops").glob("*.h")} == {
        "activations.h",
        *ways.headers("add", "bias"),
    }
    assert "kf_cpu_add_silu_f32" not in (prefix / "include/kf/ops/add.h").read_text()
    project = ways.consumer(tmp_path / "project")
    ways.shell(ways.snippet("compile"), project, tmp_path)
    assert run(project / "program") == ways.OUTPUT
    run("ninja", "-C", "build", "uninstall", cwd=checkout)
    assert not [p for p in prefix.rglob("*") if p.is_file()]


def test_installs_the_files_of_make_install(checkout, home, tmp_path):
    """`make install`, whose files find_package reads, and Meson install the same hand-written
    headers and package files. Meson keeps the list of files itself; here it has few functions."""
    prefix = tmp_path / "prefix"
    setup(checkout, f"--prefix={prefix}", "-Dtests=disabled", "-Dops=add", "-Ddtypes=f32")
    run(MESON, "install", "-C", "build", cwd=checkout)
    by_make, by_meson = ways.tree(home / ".local"), ways.tree(prefix)
    assert set(by_meson) <= set(by_make)
    missing = set(by_make) - set(by_meson) - {"share/kf/installed.txt"}
    assert {"include/kf/runtime/add.h", "include/kf/runtime/all.h"} <= set(by_meson)
    hand_written = {f"include/{header}" for header in paths.own_headers()}
    assert not hand_written & missing
    generated = ("include/kf/ops/", "include/kf/any/", "include/kf/launchers/", "include/kf/kf_")
    generated += ("include/kf/runtime/",)
    assert [p for p in sorted(missing) if not p.startswith(generated)] == []
    same = ("share/", "include/kf/core/", *hand_written)
    for file in (f for f in by_meson if f.startswith(same)):
        assert by_meson[file] == by_make[file], file


@pytest.mark.level(2)
@ways.needs_pkg_config
@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
def test_directories_of_ones_own(checkout, tmp_path, inside):
    """--includedir and --datadir, inside the prefix and outside: the installed package files must
    find the headers."""
    prefix = tmp_path / "prefix"
    include, data = ("inc/deep", "data") if inside else (tmp_path / "include", tmp_path / "data")
    setup(
        checkout,
        f"--prefix={prefix}",
        f"--includedir={include}",
        f"--datadir={data}",
        "-Dtests=disabled",
        "-Dops=add",
        "-Ddtypes=f32",
    )
    run(MESON, "install", "-C", "build", cwd=checkout)
    output = run(
        "pkg-config", "--variable=includedir", "kf", PKG_CONFIG_PATH=prefix / data / "pkgconfig"
    ).strip()
    assert (prefix / include).samefile(output)
    project = ways.consumer(tmp_path / "project", CMakeLists__txt=ways.snippet("cmake"))
    if ways.CMAKE:
        run("cmake", "-B", "build", f"-Dkf_DIR={prefix / data}/cmake/kf", cwd=project)
        run("cmake", "--build", "build", cwd=project)
        assert run(project / "build/program") == ways.OUTPUT


@pytest.mark.level(2)
@pytest.mark.parametrize("source", ["archive", "checkout"])
def test_subproject(tmp_path, archive, source):
    """Runs the page's commands with the archive through a wrap, or with a checkout. Options must
    reduce the headers, and none of kf's tests may run."""
    project = ways.consumer(
        tmp_path, meson__build=ways.snippet("meson") + "test('own', find_program('true'))\n"
    )
    if source == "checkout":
        with_checkout(project)
    else:
        sum_ = hashlib.sha256(archive.read_bytes()).hexdigest()
        wrap = ways.snippet(
            "wrap", [("https://example.org/", f"file://{archive.parent}/"), ("SUM", sum_)]
        )
        ways.consumer(project, **{"subprojects/kf__wrap": wrap})
    ways.shell(ways.snippet("meson-run", [("build -D", f"build {' '.join(STRICT)} -D")]), project)
    assert run(project / "build/program") == ways.OUTPUT
    kf = project / "build/subprojects" / ("kf" if source == "checkout" else f"kf-{ways.VERSION}")
    assert {p.name for p in (kf / "include/kf/ops").glob("*.h")} == {
        "activations.h",
        *ways.headers("add", "bias"),
    }
    assert "no work to do" in ninja(project)
    for options, installed in ((["--skip-subprojects"], 0), ([], 1)):
        run(MESON, "install", "-C", "build", *options, cwd=project, DESTDIR=tmp_path / "root")
        assert len(list((tmp_path / "root").rglob("kf.h"))) == installed
    assert [
        t["name"] for t in json.loads(run(MESON, "introspect", "build", "--tests", cwd=project))
    ] == ["own"]
    # Excluded functions must be missing, although the archive has them: the build's own headers
    # come first.
    (project / "program.c").write_text(
        "#include <kf/kf.h>\nint main(void) { return kf_cpu_add_bf16(NULL, NULL, NULL, 0); }\n"
    )
    assert "kf_cpu_add_bf16" in run("ninja", "-C", "build", cwd=project, fails=True)


def test_options_of_the_parent(tmp_path):
    """A parent's option of the same name applies to kf too, and so do default_options."""
    text = ways.snippet(
        "meson", [("dependency('kf')", "dependency('kf', default_options: ['ops=add'])")]
    )
    project = ways.consumer(
        tmp_path,
        meson__build=text,
        meson_options__txt="option('dtypes', type: 'array', value: ['f32'])\n",
    )
    with_checkout(project)
    setup(project)
    ninja(project)
    output = run(MESON, "setup", "wrong", "-Dkf:ops=silu_mul", cwd=project, fails=True)
    assert (
        "ERROR: Problem encountered: kfgen: error: --ops: `silu_mul` is the op act_mul" in output
        and "Traceback" not in output
    )
    ops = project / "build/subprojects/kf/include/kf/ops"
    assert {p.name for p in ops.glob("*.h")} == {
        "activations.h",
        *ways.headers("add"),
    } and "bf16" not in (ops / "add.h").read_text()
    assert run(project / "build/program") == ways.OUTPUT


@pytest.mark.level(2)
def test_subproject_follows_edits(tmp_path):
    """An edit of a template, spec or core header must recompile a consumer's objects in the same
    run of ninja, and no objects that do not include the change."""
    text = ways.snippet("meson") + "executable('other', 'other.c', dependencies: kf)\n"
    project = ways.consumer(tmp_path, meson__build=text, other__c=OTHER)
    kf = with_checkout(project)
    setup(project, *STRICT, "-Dkf:ops=add,bias", "-Dkf:dtypes=f32")
    ninja(project)
    assert run(project / "build/program") == ways.OUTPUT
    assert "no work to do" in ninja(project)

    edit(kf / "include/kf/core/elementwise/elementwise.h", "#endif", "#endif\n/* edited */")
    assert "program.c.o" in ninja(project)

    (kf / "templates/macros.j2").touch()  # the same headers: restat ends the rebuild
    output = ninja(project)
    assert "kfgen" in output and "program.c.o" not in output

    edit(
        kf / "gen/kfgen/families/elementwise/ops.toml", 'expr = "act(a + b)"', 'expr = "act(a - b)"'
    )
    output = ninja(project)
    assert "program.c.o" in output and "other.c.o" not in output
    assert run(project / "build/program") == "0 0 8\n"
    assert "no work to do" in ninja(project)
    # One more op adds a file.
    run(MESON, "configure", "build", "-Dkf:ops=add,bias,mul", cwd=project)
    ninja(project)
    assert (project / "build/subprojects/kf/include/kf/ops/mul.h").is_file()


@pytest.mark.level(2)
def test_own_spec(tmp_path):
    """The parent's own spec must be in its program, and rebuilt after an edit of the spec or of
    kf's templates, but not otherwise."""
    project = ways.consumer(
        tmp_path, meson__build=ways.snippet("meson-own"), my_ops__toml=SPEC, program__c=OWN
    )
    kf = with_checkout(project)
    setup(project, *STRICT)
    ninja(project)
    assert run(project / "build/program") == "1.5 1, 0.5 0\n"
    assert "no work to do" in ninja(project)

    edit(project / "my_ops.toml", 'expr = "residual +', 'expr = "residual -')
    output = ninja(project)
    assert (
        output.count("render --one-file") == 1
        and "program.c.o" in output
        and "kf umbrellas" not in output
    )
    assert run(project / "build/program") == "0.5 1, -0.5 0\n"
    assert "no work to do" in ninja(project)

    (project / "my_ops.toml").touch()
    assert "program.c.o" not in ninja(project)
    edit(kf / "templates/elementwise/kernel.h.j2", "\nKFI_C_END", "\n/* edited */\nKFI_C_END")
    output = ninja(project)
    assert "render --one-file" in output and "program.c.o" in output
    assert "/* edited */" in (project / "build/my_ops.h").read_text()
    assert "no work to do" in ninja(project)

    edit(project / "my_ops.toml", 'gamma * act(x)"\nref', 'gamma * act(z)"\nref')
    output = run("ninja", "-C", "build", cwd=project, fails=True)
    assert "kfgen: error: " in output and "my_ops.toml" in output and "z" in output


@pytest.mark.level(2)
@ways.needs_nvcc
def test_own_spec_cuda(tmp_path):
    """A custom target compiles the parent's own .cu; the object must have the parent's kernels
    only."""
    # kf has fewer dtypes and activations here; kfgen gets the same options.
    text = ways.snippet(
        "meson-own",
        [("'--one-file'", "'--one-file', '--dtypes', 'f32,f16', '--activations', 'relu,gelu'")],
    )
    text += ways.snippet("meson-cuda", [("'-O3'", "'-O3', '-Werror', 'all-warnings'")])
    project = ways.consumer(
        tmp_path, meson__build=text, my_ops__toml=SPEC, program__c=OWN, program__cu=OWN_CUDA
    )
    kf = with_checkout(project)
    setup(project, "-Dkf:dtypes=f32,f16", "-Dkf:activations=relu,gelu")
    ninja(project)
    built = (project / "build/program.o").read_bytes()
    assert b"kfk_act_layer_scale_f16ILi7E" in built and b"kfk_add" not in built
    assert "no work to do" in ninja(project)
    edit(project / "my_ops.toml", 'expr = "residual +', 'expr = "residual -')
    assert "program.cu" in ninja(project)
    assert (project / "build/program.o").read_bytes() != built
    edit(
        kf / "include/kf/core/elementwise/args.cuh",
        "#define KFI_ROWS 0",
        "#define KFI_ROWS 0 // edited",
    )
    output = ninja(project)
    assert "program.cu" in output and "program.c.o" not in output
    assert "no work to do" in ninja(project)
