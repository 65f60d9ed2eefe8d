# SPDX-License-Identifier: Apache-2.0
"""CUDA schedule of `row` for ops over groups of channels whose pixels are contiguous (NHWC): blocks
of adjacent groups, held in the registers of a cluster, or shared by several blocks with a launch
per pass. Depending on the sizes, a group is a row instead (core/rows/group_block_host.cuh).
"""

import functools

from kfgen.families.rows.band import PARTS, BandCuda
from kfgen.families.rows.steps import CLUSTER
from kfgen.language.passes import program
from kfgen.language.primitives import COLUMN
from kfgen.model import steps
from kfgen.model.steps import PARTIALS, Launch, Step

# Conditions of the launches.
HELD, SHARED = "a block or cluster holds the groups", "several blocks share a group"


class GroupCuda(BandCuda):
    run_template = "group_run"
    geometry, geometry_name = "kfi_group_bands", "kfi_in"
    grouped = True
    forms = ("KFI_BAND_TWO", "KFI_BAND_EACH")
    held, clustered = "KFI_BAND_CLUSTER", ()

    @classmethod
    def takes(cls, k):
        """True if the op is one over groups whose elements are only read as values."""
        return (
            k.layout == "groups"
            and bool(k.loads and k.reductions)
            and not k.keeps
            and not k.picks
            and not any(s.var == "I" for s in k.values)
            and COLUMN not in k.graph.variables(k.roots)
        )

    def _program(self, graph, roots, target, env, **options):
        """The program, with the channels' gradients as sums of the first pass."""
        return program(graph, roots, target, env, [s.name for s in self.k.group_sums], **options)

    @property
    def rows_instances(self):
        return self.rows.cuda.instances

    @property
    def bounds(self):
        """Launch bounds: threads, and blocks per SM limited by the registers of the vectors."""
        if len(self.k.loads) > 1 or self.k.dtype.size == 8:
            return "KFI_GROUP_THREADS, 1"
        held = "form == KFI_BAND_EACH && stage == KFI_BAND_CLUSTER"
        return f"KFI_GROUP_THREADS, whole && !({held}) ? 2 : 1"

    @property
    def buffers(self):
        sums = {PARTIALS: "partial sums of the summed gradients"} if self.k.added else {}
        return {PARTS: "values of the parts of channel blocks, and their totals"} | sums

    @functools.cached_property
    def steps(self):
        """One launch for groups that a cluster holds, or several per pass; then the sums."""
        k, count = self.k, len(self.stages_of)
        of = {}
        for kernel in self.band_instances:
            of.setdefault(kernel.arguments[-1], []).append(kernel)
        read = steps.names(k.sources + k.values)
        written = steps.names(k.stores + k.results_of_rows)
        sums = (PARTIALS,) if k.added else ()
        held = self._launch(of[self.held], CLUSTER)
        launches = (held, *self.rows.cuda.launches(self.rows_instances))
        found = [
            Step("computes groups that a cluster holds", launches, read, (*written, *sums), HELD)
        ]
        for p in range(count):
            last = p + 1 == count
            passed = self._launch(of[f"KFI_BAND_PASS + {p}"])
            totals = Launch(tuple(of[p]), "ceil(outer * groups / 4)", "128")
            found += [
                Step(
                    f"reduces parts of groups, pass {p + 1}",
                    (passed,),
                    (*read, *((PARTS,) if p else ())),
                    (PARTS, *(() if p else sums)),
                    SHARED,
                ),
                Step(
                    f"adds up the parts of pass {p + 1}",
                    (totals,),
                    (PARTS, *steps.names(k.values)),
                    (PARTS, *steps.names(k.results_of_rows if last else ())),
                    SHARED,
                ),
            ]
        if k.stores:
            stored = self._launch(of["KFI_BAND_LAST"])
            found.append(Step("computes the elements", (stored,), (*read, PARTS), written, SHARED))
        more = self.sum_steps("channels", when="a summed gradient is wanted") if k.added else []
        return found + more

    @property
    def fields(self):
        """Fields of kfi_band_op: (name, value, comment)."""
        return [
            *super().fields,
            ("sums", len(self.k.group_sums), "gradients of channels"),
            ("runs", self.several_runs and "kfi_runs", ""),
        ]

    @property
    def rows_fields(self):
        """Fields of kfi_row for groups processed as rows: (name, value, comment)."""
        found = [f for f in super().rows_fields if f[0] != "least"]
        return [
            *found,
            ("plane_sums", len(self.k.group_sums), "gradients summed over groups"),
            ("runs", self.several_runs and "kfi_runs", ""),
        ]

    @property
    def workspace_bytes(self):
        sizes, acc = ", ".join(self.k.sizes), self.k.dtype.acc.size
        counts = f"{len(self.k.group_sums)}, {self.values}, {self.reduced}, {acc}"
        return f"kfi_group_band_workspace({sizes}, {self.vec}, {self.in_registers}, {counts})"
