# SPDX-License-Identifier: Apache-2.0
"""Reductions over an axis in CUDA: sweeps over the axis, which blocks may split."""

import functools

from kfgen.families.rows.over_rows_schedule import OverRowsCuda
from kfgen.language.passes import program
from kfgen.model import runtime_activation, steps
from kfgen.model.steps import Instance, Launch, Step

PARTS = "workspace.parts"  # the results of an axis' parts
SPLIT = "the axis is split"


class ReductionCuda(OverRowsCuda):
    geometry = "kfi_reduce"
    flat = True  # a third kernel serves contiguous axes of aligned vectors
    longest = 0  # maximum vectors per thread, if the result does not depend on the order; else 0

    @functools.cached_property
    def sweeps(self):
        """Tensors read by each sweep over the axis: the passes, then the stores."""
        return [p.reads for p in self.program.passes] + (
            [self.program.reads] if self.k.stores else []
        )

    def swept(self, stream, sweep):
        """True if an earlier sweep reads the stream."""
        return any(stream.name in read for read in self.sweeps[:sweep])

    @property
    def again(self):
        """True if several sweeps read the same tensor."""
        return any(
            s.name in read and self.swept(s, i)
            for i, read in enumerate(self.sweeps)
            for s in self.k.loads
        )

    @property
    def ahead(self):
        """Vectors of a tensor that a thread has in flight."""
        return 8 if len(self.k.loads) < 2 and self.k.slots else 4 if len(self.k.loads) < 4 else 2

    @property
    def chunk(self):
        """Vectors per chunk, if warps may share an axis; otherwise 0."""
        return self.ahead

    @property
    def blocks(self):
        """Minimum blocks per SM. The spills that this costs float32 columns are cheaper than lower
        occupancy. A vector of 2-byte columns has twice as many values
        (bench/NOTES/reduction.md)."""
        return (
            ""
            if not self.again or self.k.dtype.size == 8
            else ", 3"
            if self.k.dtype.size == 4
            else ", whole == 2 ? 3 : 2"
        )

    @functools.cached_property
    def program(self):
        env = {s.name: f"{s.name}_f[e]" for s in self.k.loads} | {
            s.name: f"{s.name}_i[e]" for s in self.k.values
        }
        return program(
            self.k.graph,
            {s.name: r for s, r in zip(self.k.outputs, self.k.roots)},
            self.rows_target,
            env,
            each="{}_s[e]",
            split=runtime_activation.split if self.k.runtime_activation else None,
        )

    @property
    def workspace_bytes(self):
        again = str(self.again).lower()
        sizes = f"{self.k.most}, {self.k.slots}, {self.k.part_size}"
        return f"kfi_reduce_workspace(outer, axis, inner, {self.vec}, {again}, {sizes})"

    @property
    def fields(self):
        """Fields of kfi_reduce_op: (name, value, comment)."""
        k = self.k
        return [
            ("passes", len(k.passes), ""),
            ("vec", self.vec, "elements per vector"),
            ("acc_size", k.part_size, "bytes of a partial result"),
            ("most", k.most, "reductions of the largest pass"),
            ("all", k.slots, "reductions of all passes"),
            ("bwd", k.bwd, ""),
            ("refuses", k.refuses, "an empty axis is an error"),
            ("again", self.again, "several sweeps read the same tensor"),
            ("longest", self.longest, "vectors per thread at most"),
            ("flat", self.flat, "a separate kernel for contiguous axes"),
            ("ahead", self.chunk, "vectors per chunk"),
        ]

    @property
    def instances(self):
        return [Instance(f"kfk_{self.k.name}", ("act", whole)) for whole in (1, 0, 2)]

    @property
    def buffers(self):
        return {PARTS: "results of the parts of a long axis"} if self.k.scratch else {}

    @functools.cached_property
    def steps(self):
        k = self.k
        read = steps.names(k.loads + k.values)
        written = steps.names(k.stores + k.results_of_rows)
        found = []
        for number in range(len(k.passes) if k.scratch else 0):
            found += self._split_steps(number, read, written)
        does, when = "reduces the axis", "the axis is not split" if k.scratch else ""
        if k.bwd and k.scratch:
            does, when, read = "reduces the axis, or reads its parts", "", (*read, PARTS)
        return [*found, Step(does, (self._launch(self.instances),), read, written, when)]

    def _launch(self, kernels):
        shared = "" if self.longest or not self.k.passes else "a result per thread and column"
        grid = "groups of results x parts"
        return Launch(tuple(kernels), grid, "by the sizes", shared=shared)

    def _split_steps(self, number, read, written):
        """Steps of a pass over a long axis, which several blocks share."""
        word = f" of pass {number + 1}" if len(self.k.passes) > 1 else ""
        last = not self.k.bwd and number + 1 == len(self.k.passes)
        return [
            Step(
                f"reduces parts of the axis{word}",
                (self._launch(self.instances),),
                (*read, *[PARTS] * (number > 0)),
                (PARTS,),
                SPLIT,
            ),
            Step(
                f"combines the parts{word}",
                (self._launch(self.instances[1:2]),),
                (PARTS, *read) if last else (PARTS,),
                written if last else (PARTS,),
                SPLIT,
            ),
        ]
