# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments that frameworks share, the library of an array, and its shape."""

import sys
from collections.abc import Sequence
from typing import Any


def arrays(where: str, **given: Any) -> None:
    """Checks that each argument is an array, before its shape is read."""
    for name, t in given.items():
        if not hasattr(t, "shape") or not hasattr(t, "dtype"):
            raise TypeError(f"kf.{where}: {name} is {type(t).__name__}, expected an array")


def product(where: str, first: str, a: Any, second: str, b: Any) -> None:
    """Checks the shapes and dtypes of a @ b.T, so that NumPy and PyTorch report the same errors."""
    arrays(where, **{first: a, second: b})
    batch = tuple(b.shape[:-2])
    if (
        len(a.shape) < 1
        or len(b.shape) < 2
        or a.shape[-1] != b.shape[-1]
        or batch
        and batch != tuple(a.shape[:-2])
    ):
        wanted = (*(a.shape[:-2] if batch else ()), "any", a.shape[-1] if a.shape else "any")
        raise ValueError(
            f"kf.{where}: {second} has the shape {tuple(b.shape)}, expected {wanted} beside "
            f"{first} of the shape {tuple(a.shape)}"
        )
    if a.dtype != b.dtype:
        raise TypeError(
            f"kf.{where}: {second} has the dtype {b.dtype}, expected {a.dtype} as {first}"
        )


def library(t: Any) -> Any:
    """Returns the array library of a NumPy or JAX array, or None for a PyTorch tensor."""
    numpy = sys.modules.get("numpy")  # the package's build has none
    if numpy is not None and isinstance(t, numpy.ndarray):  # NumPy 1 has no namespace
        return numpy
    return t.__array_namespace__() if hasattr(t, "__array_namespace__") else None


def _tensorflow(x: Any) -> Any:
    """Returns TensorFlow for its tensors, which have no methods for shapes, else None."""
    return None if hasattr(x, "reshape") else sys.modules.get("tensorflow")


def reshaped(x: Any, shape: Sequence[Any]) -> Any:
    """Returns an array with another shape; one dimension that is None follows from the others."""
    tf = _tensorflow(x)
    return tf.reshape(x, [-1 if n is None else n for n in shape]) if tf else x.reshape(shape)


def swapped(x: Any, first: int, second: int) -> Any:
    """Returns an array with two dimensions exchanged."""
    tf = _tensorflow(x)
    if tf is None:
        return x.swapaxes(first, second)
    order = list(range(len(x.shape)))
    order[first], order[second] = order[second], order[first]
    return tf.transpose(x, order)
