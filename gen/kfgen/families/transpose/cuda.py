# SPDX-License-Identifier: Apache-2.0
"""Copies to another layout in CUDA: tiles through shared memory."""

import functools

from kfgen.model import steps
from kfgen.model.schedule import Cuda
from kfgen.model.steps import Instance, Launch, Step


class TransposeCuda(Cuda):
    @property
    def instances(self):
        """Kernels by the elements of a load and of a store, in the order of
        core/transpose/transpose.cuh. The last one is for narrow matrices.
        """
        counts = 16 // self.k.dtype.size, 1  # elements of an access
        shapes = [(load, store) for load in counts for store in counts] + [(0, 0)]
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
