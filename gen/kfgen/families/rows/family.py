# SPDX-License-Identifier: Apache-2.0
"""The family `rows`: outputs per element or per row that need reductions over the row, such as
norms, softmax and losses.
"""

import functools

from kfgen.families.family import FURTHER, one_broadcast, wrong
from kfgen.families.rows.band import BandCuda
from kfgen.families.rows.c import RowsC
from kfgen.families.rows.cuda import RowsCuda
from kfgen.families.rows.over_rows import OverRows, OverRowsKernel
from kfgen.language.expr import stages
from kfgen.language.primitives import COLUMN, COUNT, QUERIES, QUERY
from kfgen.model.derive import has_queries
from kfgen.model.entries import SpecError
from kfgen.model.kinds import (
    CHANNEL,
    ELEM,
    GROUP,
    PER_CHANNEL,
    PER_GROUP,
    PER_PLANE,
    PER_QUERY,
    PER_ROW,
    ROW,
    SHARED_BY_HEADS,
)
from kfgen.model.shapes import BEFORE_AXIS, NONE, ONE, REST, argument
from kfgen.model.types import WEIGHTS

OF_LAYOUTS = (PER_PLANE, PER_QUERY, PER_GROUP, PER_CHANNEL)


class RowsKernel(OverRowsKernel):
    @functools.cached_property
    def cuda(self):
        return BandCuda(self) if self.shared_out else RowsCuda(self)

    @functools.cached_property
    def shared_out(self):
        return BandCuda.takes(self)

    @functools.cached_property
    def c(self):
        return RowsC(self)

    @property
    def has_workspace(self):
        """True if calls take workspace. For layouts whose rows may be few and long, forwards take
        one too: several blocks may share a row.
        """
        return super().has_workspace or self.layout in self.family.long_rows

    @property
    def summed_over(self):
        return (
            "outer, length and inner"
            if "group" in self.kinds
            else "outer"
            if self.has_channel
            else "rows"
        )

    def _refuse(self):
        if not self.reductions and self.stores and any(p.source.kind == "elem" for p in self.picks):
            problem = (
                "stores elements and picks one of a tensor that they may overwrite, "
                "with no reduction between"
            )
            raise SpecError(
                self.op.file, f"op.{self.op.pattern}", "expr", problem, "make two ops of it"
            )
        # All threads of a row must wait at a reduction before results overwrite inputs.
        if self.group_sums and not self.reductions:
            problem = (
                'has a gradient for a "group" and a backward that reduces nothing over the row'
            )
            raise SpecError(
                self.op.file,
                f"op.{self.op.pattern}",
                "expr",
                problem,
                "add grad = false to it, or make its kind elem",
            )
        for s in self.group_sums:
            if stages(self.graph, s.exprs):
                problem = (
                    f"the gradient for `{s.name[1:]}` needs a sum over the row, "
                    "for which it would wait"
                )
                raise SpecError(
                    self.op.file,
                    f"op.{self.op.pattern}",
                    "expr",
                    problem,
                    "save that sum in the forward",
                )


class Rows(OverRows):
    kernel = RowsKernel
    name = "rows"
    runtime_activation = True
    title = "Ops over rows"
    # Layouts of core/check.h. rows. planes: a row is a channel of a batch. heads: a row is a query
    # of a head. groups: a row is a group of channels, in `length` segments of channels / groups *
    # inner elements. channels: a row is a channel of all batches, in `outer` segments.
    forms = {
        "rows": {"elem": "rows, cols", "row": "cols", "per_row": "rows"},
        "planes": {
            "elem": "outer, channels, inner",
            "channel": "channels",
            "per_plane": "outer, channels",
        },
        "heads": {
            "elem": "batch, heads, queries, keys",
            "shared": "batch, queries, keys",
            "per_query": "batch, heads, queries",
        },
        "groups": {
            "elem": "outer, length, channels, inner",
            "group": "channels",
            "per_group": "outer, groups",
        },
        "channels": {"elem": "outer, channels, inner", "per_channel": "channels"},
    }
    long_rows = ("planes", "groups", "channels")
    sizes = {"groups": "outer, length, groups, channels, inner"}
    axes = {
        "rows": (-1, {"rows": REST, "cols": ONE}),
        "planes": (1, {"outer": BEFORE_AXIS, "channels": ONE, "inner": REST}),
        "heads": (None, {"batch": REST, "heads": ONE, "queries": ONE, "keys": ONE}),
        "groups": (
            1,
            {
                "outer": BEFORE_AXIS,
                "length": NONE,
                "groups": argument("groups", divides="channels"),
                "channels": ONE,
                "inner": REST,
            },
        ),
        "channels": (1, {"outer": BEFORE_AXIS, "channels": ONE, "inner": REST}),
    }
    any_order = ("groups", "channels")
    channels_last = {
        "groups": {
            "outer": BEFORE_AXIS,
            "length": REST,
            "groups": argument("groups", divides="channels"),
            "channels": ONE,
            "inner": NONE,
        }
    }
    levels = {
        "rows": ("",),
        "planes": ("", "_outer"),
        "heads": ("", "_head", "_batch"),
        "groups": ("", "_length", "_outer"),
        "channels": ("", "_outer"),
    }
    kinds = (ELEM, ROW, PER_ROW, CHANNEL, SHARED_BY_HEADS, GROUP, *OF_LAYOUTS)
    fields = ("saved", "updates", "grads", "layout")
    integers, roles = True, (WEIGHTS,)
    reads = (COLUMN, COUNT, QUERY, QUERIES)

    def dtypes(self, kind, grad):
        found = {"elem": (), "shared": ()}.get(kind, ("acc", FURTHER))
        return found + ({"per_row": ("I",), "shared": ("u8",)}.get(kind, ()) if not grad else ())

    def absent(self, kind):
        return kind != "elem"

    def check_operands(self, f, operands):
        one_broadcast(f, operands)
        for o in operands:
            if o.kind == "shared" and o.grad:
                raise f.error(
                    "operands",
                    f"{o.name} is shared by heads and has a gradient",
                    "add grad = false to it",
                )

    def check(self, op, graph, env, outputs):
        odd = next((o for o in op.operands if o.kind in ("row", "channel", "group")), None)
        queried = has_queries(op, graph, env, outputs)
        if odd and queried:
            raise wrong(
                op,
                "operands",
                f"`{odd.name}` is a {odd.kind!r} of an op over queries and keys",
                'use "elem", "shared" or "per_row"',
            )
        if op.layout and queried:
            raise wrong(
                op,
                "layout",
                f"is {op.layout!r} of an op over queries and keys",
                "leave one of the two out",
            )
        super().check(op, graph, env, outputs)

    def check_rows(self, op, picks):
        word = "pick" if picks else "dropout"
        odd = next((o for o in op.operands if o.kind in ("row", "channel", "group")), None)
        if odd and odd.kind == "group" and (picks or op.dropout):
            fix = "a row of groups is in segments: write a second op for it"
            raise wrong(
                op, "operands", f"`{odd.name}` is a 'group' of an op that calls {word}()", fix
            )
        if op.layout and (picks or op.dropout):
            raise wrong(
                op,
                "layout",
                f"is {op.layout!r} of an op that calls {word}()",
                "a row of channels is in segments: write a second op for it",
            )


FAMILY = Rows()
