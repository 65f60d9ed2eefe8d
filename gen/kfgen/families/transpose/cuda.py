# SPDX-License-Identifier: Apache-2.0
"""Copies to another layout in CUDA: tiles through shared memory."""

import functools

from kfgen.model import steps
from kfgen.model.schedule import Cuda
from kfgen.model.steps import Instance, Launch, Step


class TransposeCuda(Cuda):
    @property
    def vec(self):
        """Elements of 16 bytes."""
        return 16 // self.k.dtype.size

    @property
    def instances(self):
        """Kernels by the elements of a load and of a store, in the order of
        core/transpose/transpose.cuh. The last one is for narrow matrices.
        """
        shapes = [(load, store) for load in (self.vec, 1) for store in (self.vec, 1)] + [(0, 0)]
        return [Instance(f"kfk_{self.k.name}", ("act", *shape)) for shape in shapes]

    @functools.cached_property
    def steps(self):
        launch = Launch(tuple(self.instances), "tiles of all matrices", "256")
        read, written = steps.names([self.k.original]), steps.names(self.k.outputs)
        return [Step("copies tiles through shared memory", (launch,), read, written)]

    @property
    def fields(self):
        """Fields of kfi_transpose_op: (name, value, comment)."""
        return [("size", self.k.dtype.size, "bytes of an element")]

    def listing(self):
        """The computation, for readers."""
        return [f"{self.k.outputs[0].name}[i, k, j] = {self.k.original.name}[i, j, k];"]
