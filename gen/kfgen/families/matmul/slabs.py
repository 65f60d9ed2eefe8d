# SPDX-License-Identifier: Apache-2.0
"""The kernels of a matmul forward that store results through slabs of shared memory
(core/matmul/slab.cuh), also with any row pitch (core/matmul/row_class_slab.cuh)."""

from kfgen.families.matmul.instances import LAYOUTS


class Slabs:
    """The part of MatmulCuda that describes epilogues through slabs."""

    @property
    def slab_results(self):
        """(result, its number), saved ones first, which keeps the fewest values in registers."""
        return [(s, i) for i, s in enumerate(self.k.outs)][::-1]

    @property
    def by_slabs(self):
        """Returns whether kernels store through slabs (core/matmul/slab.cuh).

        They take one product of 2-byte elements, and at most one row operand.
        """
        k = self.k
        return (
            self.by_wgmma
            and k.dtype.size == 2
            and len(k.products) == 1
            and not k.keeps
            and len(self.rows_read) < 2
            and all(s.kind in ("row", "elem") for s in self.read)
        )

    @property
    def by_classes(self):
        """Returns whether kernels store results of any row pitch (core/matmul/row_class_slab.cuh).

        The columns of a tile are rows of the right factor, which may begin anywhere.
        """
        return self.by_slabs and self.layout == LAYOUTS["nt"]

    def result_matrix(self, stream):
        """The current matrix of a result."""
        return self.matrix(stream).replace("const ", "", 1)

    @property
    def rows_read(self):
        return [s for s in self.read if s.kind == "row"]

    @property
    def slab_parameters(self):
        return self.epilogue_parameters.replace("const kfi_gemm_coord *kfi_coord, ", "")

    @property
    def slab_arguments(self):
        return ", ".join(["kfi_matrix", "g", "t", *self.store_scalars, *self.kept_arguments])
