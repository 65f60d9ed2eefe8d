# SPDX-License-Identifier: Apache-2.0
"""Base of the schedules of families over rows."""

from dataclasses import replace

from kfgen.model.activation import bwd_reads_x
from kfgen.model.schedule import CHEAP, C, Cuda


class OverRowsCuda(Cuda):
    geometry, geometry_name = "", "g"  # kernel parameter that maps rows to threads

    @property
    def vec(self):
        return 16 // max(
            (s.dtype.size for s in self.k.loads + self.k.stores), default=self.k.dtype.size
        )

    @property
    def slots(self):
        """Number of reductions per row; each has its own slots in shared memory."""
        return sum(len(p.reductions) for p in self.program.passes)

    @property
    def kernel_parameters(self):
        found = [
            f"const {s.dtype.device} *{s.name}"
            for s in self.k.sources + self.k.values + self.k.gathered_inputs
        ]
        found += [f"{s.dtype.device} *{s.name}" for s in self.k.stores + self.k.results_of_rows]
        found += [f"{self.geometry} {self.geometry_name}"] + [
            f"kfi_pitch {s.name}_p" for s in self.k.pitched
        ]
        found += ["kfi_sums sums"] if self.k.added else []
        found += [f"kf_i64 {s}" for s in self.k.used_integers] + [
            f"{self.k.scalar_ctype} {s}" for s in self.k.used_scalars
        ]
        return ", ".join(found + (["kfi_rng rng"] if self.k.keeps else []) + self.act_parameters)

    @property
    def kernel_arguments(self):
        found = [
            s.name
            for s in self.k.sources
            + self.k.values
            + self.k.gathered_inputs
            + self.k.stores
            + self.k.results_of_rows
        ]
        found += ["kfi_g"] + [f"kfi_pitches[{self.k.index(s)}]" for s in self.k.pitched]
        return self.launched(
            *found,
            *["kfi_totals"] * bool(self.k.added),
            *self.k.used_integers,
            *self.k.used_scalars,
        )

    @property
    def rows_target(self):
        target = self.target(CHEAP | {"exp"})
        return (
            replace(target, stored=lambda x: f"kfi_stored_{self.k.dtype.word}({x})")
            if self.k.dtype.size == 2
            else target
        )

    def listing(self):
        """The computed statements in order, for documentation."""
        return self.program.listing()


class OverRowsC(C):
    # The launcher's arguments for the activation: function names from the kernel's and the
    # activation's name.
    code = "{}"

    def run_arguments(self, launcher):
        k, act = self.k, launcher.act
        found = [self.code.format(f"{k.name}_{act.name}"), f'"{act.name}"'] + (
            [str(int(bwd_reads_x(act)))] if k.asks_reads else []
        )
        found += (
            [a.name for a in k.tensor_arguments]
            + k.sizes
            + ["strides"]
            + (["kfi_integers"] if k.integers else [])
        )
        found += [
            "kfi_scalars" if launcher.scalar_values else "NULL",
            *launcher.cpu_dropout_arguments,
        ]
        return ", ".join(found + [a.name for a in self.workspace_arguments])

    runtime_type = "const kfi_row_pass *"

    def runtime_code(self, word):
        """The passes of a call with a run-time activation."""
        return self.code.format(f"{self.k.name}_{word}")

    def runtime_arguments(self, launcher):
        k = self.k
        found = ["kfi_code", f'"{launcher.act.name}"'] + (
            ["kfi_chosen->reads"] if k.asks_reads else []
        )
        found += (
            [a.name for a in k.tensor_arguments]
            + k.sizes
            + ["strides"]
            + (["kfi_integers"] if k.integers else [])
        )
        return ", ".join(
            [
                *found,
                "kfi_scalars",
                *launcher.cpu_dropout_arguments,
                *(a.name for a in self.workspace_arguments),
            ]
        )

    def listing(self, act):
        """The computed statements in order, for documentation."""
        return self.plan(act).listing()

    def reads(self, found):
        return set().union(
            found.reads,
            *(p.reads for p in found.passes),
            found.groups.reads if found.groups else (),
        )

    def scalars(self, act, found):
        """[(name, index)] of the scalars that a program reads."""
        names_ = self.reads(found)
        everywhere = self.k.graph.variables(self.k.roots)
        own = [s for s in self.k.scalars if s in everywhere]
        acts = list(act.scalars) if "act" in names_ or self.k.bwd else []  # GIVEN has none
        return [
            (s, i)
            for i, s in enumerate(self.k.scalars + list(act.scalars))
            if s in own or s in acts
        ]

    def load(self, s):
        """An element of a tile, as a number."""
        if s.dtype.word == "f16":
            return f"{s.name}_f[j]"
        if s.dtype.word == "u8":
            # 0 or 1: gcc -O2 does not vectorise comparisons of bytes next to floats.
            return f"({self.k.compute})(int)(({s.name}[j] + 255u) >> 8)"
        return f"kfi_cpu_load_bf16({s.name}[j])" if s.dtype.word == "bf16" else f"{s.name}[j]"

    def cast(self, s, text):
        compute = self.k.dtype.compute
        return text if s.dtype.word == compute else f"kfi_cpu_cast_{compute}_{s.dtype.word}({text})"
