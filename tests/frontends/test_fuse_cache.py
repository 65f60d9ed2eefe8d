# SPDX-License-Identifier: Apache-2.0
"""Libraries of kf.fuse: cache on disk, compilation errors, and the NumPy fallback."""

import os
import subprocess
import sys

import cases
import kflib
import kfpython
import numpy as np
import pytest
import pytorch
from kfpython import python

torch = pytorch.load()

from formulas import DTYPES, EACH, ROWS, draw, made, shape_of  # noqa: E402
from torchops import close  # noqa: E402

SCRIPT = """
import numpy as np, kernel_fusion as kf
f = kf.fuse("silu(x) * 2.5 + b", x="elem", b="row")
print(f(np.array([[0, 1]], "f"), np.array([1, -1], "f"))[0, 1].round(4))
"""
COMPUTED = "0.8276"


def process(script, **environment):
    path = os.pathsep.join([str(kfpython.package()), str(kflib.ROOT / "gen")])
    return subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )


def failing(**environment):
    p = process(SCRIPT, **environment)
    error = p.communicate()[1]
    assert p.returncode == 1
    return error.splitlines()[-1]


@pytest.mark.check
def test_cache(tmp_path):
    """Two processes compile concurrently; later ones need no compiler; a damaged file
    is replaced.
    """
    environment = {"KF_CACHE_DIR": str(tmp_path)}
    assert "is not in" in failing(**environment, KF_OFFLINE="1") and not list(tmp_path.iterdir())
    running = [process(SCRIPT, **environment) for _ in range(2)]
    assert [p.communicate()[0].strip() for p in running] == [COMPUTED] * 2
    [made] = tmp_path.iterdir()
    assert python(SCRIPT, **environment, KF_OFFLINE="1", CC="none", PATH="") == COMPUTED
    made.write_bytes(made.read_bytes()[:100])
    assert (
        python(SCRIPT, **environment) == COMPUTED
        and list(tmp_path.iterdir()) == [made]
        and made.stat().st_size > 1000
    )
    (tmp_path / "file").write_text("")
    assert "set KF_CACHE_DIR to another directory" in failing(
        KF_CACHE_DIR=str(tmp_path / "file" / "below")
    )


def test_without_a_compiler(tmp_path):
    """NumPy computes the op, with one warning."""
    script = "import warnings; warnings.simplefilter('always')\n" + SCRIPT.replace(
        "print(f(", "f(np.ones((1, 2), 'f'), np.ones(2, 'f')); print(f("
    )
    out, error = process(script, CC="none", PATH="", KF_CACHE_DIR=str(tmp_path)).communicate()
    assert (
        out.strip() == COMPUTED
        and error.count("no C compiler was found") == 1
        and not list(tmp_path.iterdir())
    ), error


def _both(kf, f, call):
    """Results of the library and of the NumPy fallback."""
    from kernel_fusion._interpreted import Interpreted

    own = f._own
    compiled, kept = call(), dict(own.made)
    own.made.update({d: Interpreted(own.manifest(d)) for d in kept})
    try:
        return compiled, call()
    finally:
        own.made.update(kept)


@pytest.mark.parametrize(
    "text, operands, scalars", EACH + ROWS, ids=[text for text, *_ in EACH + ROWS]
)
def test_numpy_computes_the_same(kf, text, operands, scalars):
    """Values and gradients of the fallback, also for strided rows."""
    f = made(kf, text, operands, scalars)
    for dtype in cases.by_level(("f32", "bf16") if text == EACH[0][0] else ("f32",), tuple(DTYPES)):
        given = draw(operands, shape_of(operands), DTYPES[dtype][0])
        wide = {
            n: torch.cat([t, t], -1).detach()[..., : t.shape[-1]].requires_grad_()
            if t.dim() > 1
            else t
            for n, t in given.items()
        }

        def call(wide=wide):
            out = f(**wide)
            return [out, *torch.autograd.grad(out.double().square().sum(), list(wide.values()))]

        for got, want in zip(*_both(kf, f, call)):
            close(got, want.double(), 40 * DTYPES[dtype][1], text)


def test_numpy_drops_the_same(kf):
    f = kf.fuse("dropout(silu(x)) + y", x="elem", y="elem")
    x = torch.randn(3, 37, dtype=torch.float64)
    got, want = _both(kf, f, lambda: f(x, torch.zeros_like(x), p=0.3, rng=(2**40 + 5, 2**50 + 1)))
    assert ((got == 0) == (want == 0)).all() and (got == 0).any()
    close(got, want, 1e-12, "dropout")


def test_numpy_without_scipy(monkeypatch):
    """The substitute of scipy.special."""
    import scipy.special
    from kernel_fusion import _interpreted

    monkeypatch.setitem(sys.modules, "scipy.special", None)
    own, x = _interpreted.special(), np.linspace(-30, 30, 101)
    for word in ("expit", "erf", "ndtr"):
        assert np.allclose(getattr(own, word)(x), getattr(scipy.special, word)(x), 1e-13, 0), word


def test_past_python(kf, tmp_path, monkeypatch):
    """The shim's calls of a user-made op give the bits and the errors of ctypes."""
    import kernel_fusion.torch as own
    from kernel_fusion.torch import _kernels
    from kernel_fusion.torch._schema import schema

    if own.WHY_NO_SHIM is not None:
        pytest.skip("there is no shim")
    f, found = kf.fuse("silu(x + bias) * gate - 0.25", x="elem", bias="row", gate="elem"), []
    with monkeypatch.context() as m:
        m.setattr(_kernels, "call", None)  # the ctypes kernel
        for dtype in (torch.float32, torch.bfloat16):
            x, bias, gate = (torch.randn(shape, dtype=dtype) for shape in ((4, 6), 6, (4, 6)))
            out = f(x.requires_grad_(), bias, gate)
            found.append(
                ({"x": x, "bias": bias, "gate": gate}, out, torch.autograd.grad(out.sum(), [x])[0])
            )
        m.setenv("KF_CACHE_DIR", str(tmp_path))
        m.setattr(f._own, "build", lambda path, dtypes: open("/dev/full", "wb", 0).write(b"x"))
        with pytest.raises(OSError, match="its library cannot be written"):
            f(
                torch.ones(2, 3, dtype=torch.float64),
                torch.ones(3, dtype=torch.float64),
                torch.ones(2, 3, dtype=torch.float64),
            )
        m.setattr(
            f._own, "library", lambda dtypes: (_ for _ in ()).throw(KeyboardInterrupt)
        )  # Ctrl-C while the compiler runs
        with pytest.raises(KeyboardInterrupt):
            f(torch.ones(2, 3).half(), torch.ones(3).half(), torch.ones(2, 3).half())
    forward, backward = (_kernels.kernel(schema(f._op, d)) for d in (False, True))
    for given, out, dx in found:
        with torch.no_grad():
            assert torch.equal(forward(*given.values()), out)
            asked = [
                torch.ones_like(out) if t.use == "gradient" else given[t.name]
                for t in f._op.backward.inputs
            ]
            assert torch.equal(backward(*asked, 1)[0], dx)
