# SPDX-License-Identifier: Apache-2.0
"""The family `reduce` in CUDA: sweeps over an axis, which blocks may share out."""

import functools

from kfgen.families.rows.over_rows_schedule import OverRowsCuda
from kfgen.language.passes import program
from kfgen.model import runtime_activation
from kfgen.model.schedule import Instance


class ReductionCuda(OverRowsCuda):
    geometry = "kfi_reduce"
    flat = True  # whether a third kernel is for axes whose elements lie side by side, in aligned vectors
    longest = 0  # vectors of a thread at most, where bits do not depend on which thread has which

    @functools.cached_property
    def sweeps(self):
        """What each sweep over the axis reads: the passes, then the one that stores elements."""
        return [p.reads for p in self.program.passes] + (
            [self.program.reads] if self.k.stores else []
        )

    def swept(self, stream, sweep):
        """Whether an earlier sweep has read it."""
        return any(stream.name in read for read in self.sweeps[:sweep])

    @property
    def again(self):
        """Whether some tensor is read by several sweeps."""
        return any(
            s.name in read and self.swept(s, i)
            for i, read in enumerate(self.sweeps)
            for s in self.k.loads
        )

    @property
    def ahead(self):
        """Vectors of a tensor that a thread has on their way."""
        return 8 if len(self.k.loads) < 2 and self.k.slots else 4 if len(self.k.loads) < 4 else 2

    @property
    def chunk(self):
        """Vectors of a chunk, which warps may share out; 0: they may not."""
        return self.ahead

    @property
    def blocks(self):
        """How many of them an SM shall have: what float32 spills for that in columns costs less than the room; a vector of 2-byte columns is twice
        as many values (bench/NOTES.md)."""
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
            split=runtime_activation.split if self.k.chosen else None,
        )

    @property
    def workspace_bytes(self):
        again = str(self.again).lower()
        return f"kfi_reduce_workspace(outer, axis, inner, {self.vec}, {again}, {self.k.most}, {self.k.slots}, {self.k.part_size})"

    @property
    def instances(self):
        return [Instance(f"kfk_{self.k.name}", ("act", whole)) for whole in (1, 0, 2)]
