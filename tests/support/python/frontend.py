# SPDX-License-Identifier: Apache-2.0
"""The functions of all Python frontends, called with NumPy arrays."""

import importlib

import numpy as np
import pytest

NAMES = ("numpy", "torch", "jax", "tensorflow")
OWN = {"jax": "kernel_fusion.jax", "tensorflow": "kernel_fusion_tensorflow"}


class Frontend:
    """Calls functions of one frontend, which converts arrays to its library's and back.

    Args:
        name: one of NAMES; the test is skipped if the library is not installed.
        kf: the package.
    """

    def __init__(self, name, kf):
        self.name = name
        self.library = np if name == "numpy" else pytest.importorskip(name)
        self.ops = importlib.import_module(OWN[name]) if name in OWN else kf.ops

    def to(self, x):
        """Converts an array; other arguments stay."""
        if not isinstance(x, np.ndarray) or self.name == "numpy":
            return x
        if self.name == "jax":
            return self.library.numpy.asarray(x)
        return self.library.from_numpy(x) if self.name == "torch" else self.library.constant(x)

    def __call__(self, name, *args, **kwargs):
        kwargs = {word: self.to(x) for word, x in kwargs.items()}
        found = getattr(self.ops, name)(*map(self.to, args), **kwargs)
        return [np.asarray(x) for x in found] if isinstance(found, tuple) else np.asarray(found)


def parametrize(*names):
    """The parameter `which` of a test, a name for Frontend: all, or those given."""
    return pytest.mark.parametrize("which", names or NAMES)
