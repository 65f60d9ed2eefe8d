# SPDX-License-Identifier: Apache-2.0
"""Expands entries into kernels: one per op, dtypes and direction, a launcher per activation."""

from kfgen import families
from kfgen.model.dtypes import DTYPES, FLOAT_DTYPES, INDEX, INT_DTYPES, ROUNDED, STORED


def dtype_tuples(op, dtypes):
    if op.types == "pairs":
        return [(a, b) for a in STORED for b in STORED if a != b and a in dtypes and b in dtypes]
    found = [
        (d,) for d in STORED if d in dtypes and (d in FLOAT_DTYPES or (op.ints and d in INT_DTYPES))
    ]
    if op.types in ("weights", "results", "gradients") and "f32" in dtypes:
        found += [(d, "f32") for d in ("f16", "bf16") if d in dtypes]
    found += [
        (d,)
        for d, stored in ROUNDED.items()
        if d in dtypes and stored in dtypes and families.of(op).rounds
    ]
    return found + [(*d, word) for word in INDEX[1:] for d in found if op.indexed]


def kernels(op, dtypes=DTYPES):
    """Returns the kernels of an op."""
    found = []
    for ds in dtype_tuples(op, dtypes):
        found.append(families.of(op).forward(op, ds))
        if found[-1].has_backward:
            found += [
                families.of(op).backward(op, both)
                for both in families.of(op).backward_dtypes(op, ds, dtypes)
            ]
    return [kernel for kernel in found if kernel.acts]


def counted(launchers):
    """Describes the number of functions per backend of [(kernel, launcher)]."""
    for_c, for_cuda = (sum(word in k.backends for k, _ in launchers) for word in ("c", "cuda"))
    return (
        f"{for_c} functions per backend"
        if for_c == for_cuda
        else f"{for_c} functions for C, {for_cuda} for CUDA"
    )
