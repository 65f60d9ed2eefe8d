# SPDX-License-Identifier: Apache-2.0
"""C schedule of attention: a few rows at a time, with an online softmax over blocks of keys."""

from kfgen.families.attention.scores import CScore
from kfgen.model.schedule import C


class AttentionC(C):
    @property
    def core(self):
        return ("kf/core/attention/bwd_op",) if self.k.bwd else ()

    @property
    def run_parameters(self):
        k = self.k
        found = [f"{a.ctype}{a.name}" for a in (*k.tensor_arguments, *k.size_arguments)]
        found += [f"{a.ctype}{a.name}" for a in k.stride_arguments]
        found += [f"const kf_i64 *kfi_integers, const void *kfi_scalars{self.dropout_parameters}"]
        return ", ".join([*found, *(f"{a.ctype}{a.name}" for a in self.workspace_arguments)])

    def run_arguments(self, launcher):
        k = self.k
        found = [a.name for a in (*k.tensor_arguments, *k.size_arguments, *k.stride_arguments)]
        found.append("kfi_integers" if k.flat_integers else "NULL")
        found.append("kfi_scalars" if launcher.scalar_values else "NULL")
        found += launcher.cpu_dropout_arguments
        return ", ".join([*found, *(a.name for a in self.workspace_arguments)])

    @property
    def workspace_bytes(self):
        form = ("_bwd" if self.k.bwd else "") + self.k.suffix
        sums = f", {len(self.k.head_gradients)}" if self.k.bwd else ""
        return f"kfi_cpu_attention{form}_workspace(shape, {self.k.dtype.acc.size}{sums})"

    @property
    def code(self):
        """The score's code; None if it has none of its own."""
        return None if self.k.plain else CScore(self.k)

    @property
    def scale(self):
        """Factor of the products."""
        k = self.k
        if not k.factor:
            return "1.0"
        return f"(double)((const {k.scalar_ctype} *)kfi_scalars)[{k.scalars.index(k.factor)}]"

    @property
    def call(self):
        """Suffix of the function that checks and runs a call."""
        return "_bwd" if self.k.bwd else ""

    @property
    def bounds(self):
        """[(field of the plan, slope, C expression of the addend)]."""
        texts = {n: f"kfi_integers[{i}]" for i, n in enumerate(self.k.flat_integers)}
        return self.k.bounds_of(texts)

    def listing(self, act):
        return self.k.formulas(False)
