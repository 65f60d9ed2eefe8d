# SPDX-License-Identifier: Apache-2.0
"""C schedules of decoding: jobs for (sequence, kv head, chunk), or for rows."""

from kfgen.model.schedule import C


class RowsC(C):
    """Parameters and arguments of a run function."""

    @property
    def run_parameters(self):
        k = self.k
        given = (*k.tensor_arguments, *k.size_arguments, *k.stride_arguments)
        found = [f"{a.ctype}{a.name}" for a in given]
        if k.flat_integers:
            found.append("const kf_i64 *kfi_integers")
        if k.scalars:
            found.append("const void *kfi_scalars")
        return ", ".join([*found, *(f"{a.ctype}{a.name}" for a in self.workspace_arguments)])

    def run_arguments(self, launcher):
        k = self.k
        given = (*k.tensor_arguments, *k.size_arguments, *k.stride_arguments)
        found = [a.name for a in given]
        found += ["kfi_integers"] if k.flat_integers else []
        found += ["kfi_scalars"] if k.scalars else []
        return ", ".join([*found, *(a.name for a in self.workspace_arguments)])

    def listing(self, act):
        return self.k.formulas(False)


class DecodeC(RowsC):
    @property
    def workspace_bytes(self):
        return f"kfi_cpu_decode_workspace(shape, {self.k.dtype.acc.size})"
