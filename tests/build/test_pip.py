# SPDX-License-Identifier: Apache-2.0
"""The generator installed by pip: it needs nothing of the checkout that it came from."""

import shutil
import sys
import sysconfig
import venv
import zipfile

import pytest
import ways
from ways import run

pytest.importorskip("setuptools", reason="no setuptools")


@pytest.fixture(scope="module")
def environment(once):
    """A virtual environment with kfgen in it; jinja2 and setuptools are those of the tests: nothing is fetched."""
    return once("pip", installed)


def installed(folder):
    source = ways.copy(folder / "checkout")
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    [packages] = (folder / "venv/lib").glob("python3*/site-packages")
    (packages / "tests.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    pip = f"{sys.executable} -m pip --python {folder}/venv/bin/python install --no-index --no-deps --no-build-isolation"
    ways.shell(ways.snippet("pip", [("pip install", pip)]), source)
    shutil.rmtree(source)
    return folder / "venv"


def kfgen(environment, *arguments, **kwargs):
    return run(environment / "bin/kfgen", *arguments, **kwargs)


def test_install(environment, tmp_path, home):
    """The page's lines, from a directory that has nothing of kf: the same files as by make install, and a user's own."""
    shutil.copy(ways.ROOT / "examples/my_ops.toml", tmp_path)
    lines = ways.snippet("pip-use", [(f"kfgen {word}", f"{environment}/bin/kfgen {word}") for word in ("install", "render")])
    ways.shell(lines, tmp_path, tmp_path / "home")
    mine, theirs = ({p.relative_to(h / ".local").as_posix(): p.read_bytes() for p in (h / ".local").rglob("*") if p.is_file()}
                    for h in (tmp_path / "home", home))
    assert {k: v for k, v in mine.items() if k in theirs} == theirs
    assert all("my_ops" in path for path in set(mine) - set(theirs)) and "include/kf/my_ops.cuh" in mine
    run("gcc", "-O2", "-isystem", tmp_path / "home/.local/include", ways.ROOT / "examples/04_own_ops.c", "-o", tmp_path / "own", "-lm")
    assert "largest error" in run(tmp_path / "own")


def test_commands(environment, tmp_path):
    where = run(environment / "bin/python", "-c", "import kfgen.paths as p; print(p.ROOT)", cwd=tmp_path)
    assert where.startswith(str(environment))
    assert len(kfgen(environment, "list", cwd=tmp_path).splitlines()) > 2000
    assert "gen/spec/map.toml" in kfgen(environment, "explain", "kf_add_relu_f16", cwd=tmp_path)
    kfgen(environment, "docs", "--out", "docs", cwd=tmp_path)
    (tmp_path / "one.c").write_text(kfgen(environment, "source", "kf_cpu_add_relu_f32", cwd=tmp_path))
    run("gcc", "-std=c11", "-fsyntax-only", tmp_path / "one.c")


@pytest.mark.level(2)
@pytest.mark.parametrize("source", ["checkout", "sdist"])
def test_wheel(tmp_path, source):
    """Small, without a compiled file, and with no requirement but jinja2; from a checkout, and from a source distribution."""
    folder = ways.copy(tmp_path / "checkout")
    if source == "sdist":
        run(sys.executable, "-c", f"import setuptools.build_meta as b; b.build_sdist({str(tmp_path)!r})", cwd=folder)
        [folder] = tmp_path.glob("*.tar.gz")
    run(sys.executable, "-m", "pip", "wheel", "--no-index", "--no-deps", "--no-build-isolation", "-w", tmp_path, folder)
    [wheel] = tmp_path.glob("*.whl")
    assert wheel.name == f"kfgen-{ways.VERSION}-py3-none-any.whl" and wheel.stat().st_size < 5e6
    with zipfile.ZipFile(wheel) as z:
        names, metadata = z.namelist(), z.read(next(n for n in z.namelist() if n.endswith("METADATA"))).decode()
    assert [line for line in metadata.splitlines() if line.startswith("Requires-Dist")] == ["Requires-Dist: jinja2>=3.1"]
    wanted = {f"kfgen/data/{p.relative_to(ways.ROOT).as_posix()}" for folder, pattern in
              (("templates", "*.j2"), ("gen/spec", "*.toml"), ("include/kf/core", "*.*h")) for p in (ways.ROOT / folder).rglob(pattern)}
    assert {n for n in names if n.startswith("kfgen/data/")} == wanted
    assert not [n for n in names if not n.startswith(("kfgen/", f"kfgen-{ways.VERSION}.dist-info/"))]
    assert any(n.endswith("LICENSE") for n in names)
