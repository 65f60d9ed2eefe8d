# SPDX-License-Identifier: Apache-2.0
"""CUDA schedule of `row` for ops over channels: blocks of adjacent channels, in the registers of
one CUDA block, or shared by several with a launch per pass. Depending on the sizes, a channel is a
row in registers instead (core/rows/channel_block_host.cuh).
"""

import functools
from copy import copy as duplicate
from dataclasses import dataclass, replace

from kfgen.families.rows.cuda import RowsCuda
from kfgen.families.rows.over_rows_schedule import OverRowsCuda
from kfgen.language.passes import copy
from kfgen.language.primitives import COLUMN, COUNT
from kfgen.model import runtime_activation, steps
from kfgen.model.steps import Instance, Launch, Step

PARTS = "workspace.parts"
HELD, SHARED = "a block or cluster holds a channel", "several blocks share a channel"
FORMS = ("KFI_BAND_ONE", "KFI_BAND_TWO", "KFI_BAND_EACH")


@dataclass
class Stage:
    """A pass, or two fused passes: a sum, and squared distances from the mean computed from it."""

    passes: list
    moments: bool
    first: int  # reductions of the earlier stages
    at: int  # offset of the stage's values in shared memory

    @property
    def reductions(self):
        return [r for p in self.passes for r in p.reductions]

    @property
    def values(self):
        """Values that a block stores per channel. Moments have their element count too."""
        return 3 if self.moments else len(self.reductions)

    @property
    def lines(self):
        return self.passes[0].lines

    @property
    def reads(self):
        return self.passes[0].reads

    @property
    def calls(self):
        return self.passes[0].calls


class BandCuda(OverRowsCuda):
    template = "band"
    run_template = "band_run"
    geometry, geometry_name = "kfi_bands", "kfi_g"
    ahead = 4  # vectors of a thread in flight, if a block does not hold its channel block

    @classmethod
    def takes(cls, k):
        """True if the op is one over channels whose elements are only read as values."""
        if (
            k.layout != "channels"
            or not k.loads
            or k.added
            or k.keeps
            or k.picks
            or any(s.var == "I" for s in k.values)
        ):
            return False
        own = cls(k)
        read = set().union(own.program.reads, *(p.reads for p in own.program.passes))
        return COLUMN not in k.graph.variables(k.roots) and not any(
            s.place_of in read for s in k.outputs if s.place_of
        )

    @functools.cached_property
    def program(self):
        env = {s.name: f"{s.name}_f[e]" for s in self.k.sources} | {
            s: f"(({self.k.compute}){s})" for s in self.k.integers
        }
        env |= self.k.value_env(self._of("{}_i"))
        whole = {s: s for s in self.k.integers} | {COUNT: "kfi_g.cols"}
        graph, roots = copy(self.k.graph, self.k.roots, {})
        target = replace(self.rows_target, whole=whole, offset="e", near="kfi_near<0>")
        return self.k.program(
            graph,
            {s.name: r for s, r in zip(self.k.outputs, roots)},
            target,
            env,
            (),
            each=self._of("{}"),
            split=runtime_activation.split if self.k.runtime_activation else None,
        )

    @functools.cached_property
    def rows(self):
        """The same kernel with the schedules of other rows: a channel is a row in segments."""
        found = duplicate(self.k)
        found.__dict__["cuda"] = RowsCuda(found)
        return found

    @property
    def rows_instances(self):
        """The kernels that hold a row; longer rows are processed by channel blocks."""
        return self.rows.cuda.instances[:-2]

    def _of(self, name):
        """The value of the channel of a vector's element."""
        return f"kfi_band_of<kfi_form>({name}, e, kfi_split)"

    @property
    def in_registers(self):
        """Vectors per thread and tensor in registers."""
        return 8 if len(self.k.loads) <= 2 else 4

    @functools.cached_property
    def stages_of(self):
        found, passes = [], list(self.program.passes)
        while passes:
            moments = len(passes) > 1 and self._moments(passes[0], passes[1])
            own = [passes.pop(0) for _ in range(2 if moments else 1)]
            found.append(
                Stage(
                    own,
                    moments,
                    sum(len(s.reductions) for s in found),
                    sum(s.values for s in found),
                )
            )
        return found

    def _moments(self, one, two):
        """True if the second pass sums squared distances from the mean of the values that the first
        one sums.
        """
        if (
            len(one.reductions) != 1
            or len(two.reductions) != 1
            or one.lines
            or one.sums
            or two.sums
            or one.calls
            or two.calls
        ):
            return False
        a, b = one.reductions[0], two.reductions[0]
        means = [
            name
            for name, text in self._named(one).items()
            if text == f"kfi_div_{self.k.flavour}({self._of(a.name)}, {COUNT})"
        ]
        apart = [f"{a.text} - {self._of(name)}" for name in means]
        squares = [
            (line.split(" = ")[0].split()[-1], line.split(" = ")[1].rstrip(";"))
            for line in two.lines
            if " = " in line
        ]
        return a.word == b.word == "sum" and any(
            b.text == f"{t} * {t}" and text in apart for t, text in squares
        )

    def _named(self, step_of):
        """{value per row: its text} of the step after a pass."""
        step = step_of.after
        lines = {
            line.split(" = ")[0].split()[-1]: line.split(" = ")[1].rstrip(";")
            for line in step.lines
            if " = " in line
        }
        return {name: lines.get(text, text) for name, text in step.values}

    @property
    def instances(self):
        """Kernels that a launcher chooses from: for channel blocks in the order of
        core/rows/channel_block_host.cuh, then for rows.
        """
        return self.band_instances + self.rows_instances

    @property
    def band_instances(self):
        stages = [
            "KFI_BAND_REGISTERS",
            *(f"KFI_BAND_PASS + {p}" for p in range(len(self.stages_of))),
        ] + ["KFI_BAND_LAST"] * bool(self.k.stores)
        name = f"kfk_{self.k.name}"
        found = [
            Instance(f"{name}_band", ("act", form, whole, stage))
            for form in FORMS
            for whole in (1, 0)
            for stage in stages
        ]
        return found + [Instance(f"{name}_totals", ("act", p)) for p in range(len(self.stages_of))]

    @property
    def bounds(self):
        """Launch bounds: maximum block size, and blocks per SM limited by the registers of a
        channel block or of the vectors in flight.
        """
        in_registers = (
            "form == KFI_BAND_ONE && whole ? 2 : 1"
            if len(self.k.loads) == 1 and self.k.dtype.size == 4
            else "1"
        )
        return (
            "form == KFI_BAND_EACH ? KFI_BAND_EACH_THREADS : KFI_BAND_THREADS, "
            f"stage == KFI_BAND_REGISTERS ? {in_registers} : form == KFI_BAND_EACH || "
            "(form == KFI_BAND_ONE && whole && stage >= KFI_BAND_PASS) ? 2 : 1"
        )

    @property
    def buffers(self):
        return {PARTS: "values of the parts of channel blocks, and their totals"}

    @functools.cached_property
    def steps(self):
        """One launch for channels that a block or a cluster holds; otherwise several per pass."""
        k, count = self.k, len(self.stages_of)
        of = {}
        for kernel in self.band_instances:
            of.setdefault(kernel.arguments[-1], []).append(kernel)
        read = steps.names(k.sources + k.values + k.gathered_inputs)
        written = steps.names(k.stores + k.results_of_rows)
        held = self._launch(of["KFI_BAND_REGISTERS"])
        does = "computes channels that a block or a cluster holds"
        found = [
            Step(does, (held, *self.rows.cuda.launches(self.rows_instances)), read, written, HELD)
        ]
        for p in range(count):
            last = p + 1 == count
            values = steps.names(k.results_of_rows if last else ())
            totals = Launch(tuple(of[p]), "ceil(channels / 4)", "128")
            passed = self._launch(of[f"KFI_BAND_PASS + {p}"])
            own = (PARTS, *steps.names(k.values))
            found += [
                Step(
                    f"reduces parts of channels, pass {p + 1}",
                    (passed,),
                    (*read, PARTS)[: None if p else -1],
                    (PARTS,),
                    SHARED,
                ),
                Step(
                    f"adds up the parts of pass {p + 1}", (totals,), own, (PARTS, *values), SHARED
                ),
            ]
        if k.stores:
            stored = self._launch(of["KFI_BAND_LAST"])
            found.append(Step("computes the elements", (stored,), (*read, PARTS), written, SHARED))
        return found

    def _launch(self, kernels):
        grid, shared = "channel blocks x parts", "values of a channel block"
        return Launch(tuple(kernels), grid, "by the sizes", shared=shared)

    @property
    def values(self):
        """Maximum number of values per pass."""
        return max(found.values for found in self.stages_of)

    @property
    def reduced(self):
        """Number of reductions."""
        return sum(len(found.reductions) for found in self.stages_of)

    @property
    def fields(self):
        """Fields of kfi_band_op: (name, value, comment)."""
        found = self.stages_of
        return [
            ("vec", self.vec, "elements per vector"),
            ("in_registers", self.in_registers, "vectors that a thread holds"),
            ("passes", len(found), ""),
            ("values", self.values, "values of the longest pass"),
            ("reduced", self.reduced, "reductions of all passes"),
            ("kept", sum(s.values for s in found), "values of all passes"),
            ("sets", 3 if any(s.moments for s in found) else 1, "values reduced together"),
            ("acc_size", self.k.dtype.acc.size, "bytes of an accumulator"),
            ("stores", bool(self.k.stores), ""),
            ("per_row", bool(self.k.results_of_rows), ""),
        ]

    @property
    def rows_fields(self):
        """Fields of kfi_row for channels processed as rows: (name, value, comment)."""
        k, rows = self.k, self.rows.cuda
        return [
            ("limits", "kfi_limits", ""),
            ("limit_count", len(rows.in_registers), ""),
            *rows.sizes,
            ("per_row", bool(k.results_of_rows), ""),
            ("layout", k.layout_code, ""),
            (
                "least",
                f"{k.workspace}({', '.join(k.sizes)})",
                "bytes of workspace of channel blocks",
            ),
        ]

    @property
    def workspace_bytes(self):
        sizes, acc = ", ".join(self.k.sizes), self.k.dtype.acc.size
        of_passes = f"{self.values}, {self.reduced}, {acc}"
        return f"kfi_band_workspace({sizes}, {self.vec}, {self.in_registers}, {of_passes})"
