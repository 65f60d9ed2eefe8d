# SPDX-License-Identifier: Apache-2.0
"""Elementwise ops in C: a function over a tile of elements, whose loops compilers vectorise."""

import functools
from dataclasses import dataclass

from kfgen.language.emit import emit, reads
from kfgen.language.expr import Graph
from kfgen.language.gradient import substitute
from kfgen.language.primitives import KEEP, KEEP_SCALE, TRANSCENDENTAL
from kfgen.model import limits
from kfgen.model.activation import CALLS, GIVEN, bwd_reads_x, rising
from kfgen.model.dtypes import DTYPE, Dtype
from kfgen.model.kernel import Kernel
from kfgen.model.schedule import C, Text

GROUP = 4  # KFI_GROUP
SLOT_KINDS = {
    "load": "KFI_SLOT_LOAD",
    "store": "KFI_SLOT_STORE",
    "row": "KFI_SLOT_ROW",
    "derived": "KFI_SLOT_DERIVED",
    "sum": "KFI_SLOT_SUM",
}


@dataclass
class TileCode:
    """The loop of a tile function."""

    lines: list
    reads: set  # names of the slots that are read
    scalars: list  # (name, index) of the scalars that are read
    results: list  # (slot, text)
    groups: bool  # computes several rows at a time
    streams: bool  # results may bypass the caches
    calls: list  # calls of a run-time activation


@dataclass
class Slot:
    """One pointer of a CPU tile function."""

    role: str
    name: str
    dtype: Dtype
    operand: int
    half: int
    kernel: Kernel
    index: int = 0

    @property
    def ctype(self):
        return self.dtype.ctype

    @property
    def compute_ctype(self):
        dtype = self.kernel.dtype if self.dtype.word == "u8" else self.dtype
        return {"kf_i32": "int32_t", "kf_i64": "int64_t"}.get(
            dtype.compute_ctype, dtype.compute_ctype
        )

    @property
    def const(self):
        return "const " if self.role in ("load", "row", "derived") else ""

    def at(self, group):
        """The slot's element in a tile, or in tile u of a group, which shares row values."""
        return (
            f"{self.name}[j + u * {self.name}_n]"
            if group and self.role == "load"
            else f"{self.name}[j]"
        )

    @property
    def staged(self):
        """True if elements are converted a tile at a time, outside the loop.

        f16 always is; bf16, which takes two instructions, if the loop has an activation.
        """
        return self.kernel.dtype.compute == "f32" and (
            self.dtype.word == "f16" or (self.dtype.word == "bf16" and self.kernel.has_act)
        )

    def load(self, group=False):
        if self.staged and not group:
            return f"{self.name}_f[j]"
        if self.dtype.word == "u8":  # 0 or 1, by arithmetic that gcc -O2 vectorises
            return f"({self.compute_ctype})(int)(({self.at(group)} + 255u) >> 8)"
        return (
            f"kfi_cpu_load_{self.dtype.word}({self.at(group)})"
            if self.dtype.size == 2
            else self.at(group)
        )

    def store(self, text, group=False):
        if self.role == "sum":
            return f"{self.name}_s += {text}" if group else f"{self.at(group)} += {text}"
        if self.staged and not group:
            return f"{self.name}_f[j] = {text}"
        if self.dtype.word != self.kernel.dtype.compute:
            text = f"kfi_cpu_cast_{self.kernel.dtype.compute}_{self.dtype.word}({text})"
        target = f"{self.name}_to[j + u * {self.name}_to_n]" if group else f"{self.name}_to[j]"
        return f"{target} = {text}"

    @property
    def row(self):
        return f"{{{SLOT_KINDS[self.role]}, {self.operand}, {self.half}, {self.dtype.size}}}"


class ElementwiseC(C):
    def texts(self, acts):
        """Groups activations whose tile functions have the same structure."""
        found = {}
        for act in acts:
            for by in (False, True) if self.k.by(act) else (False,):
                own = GIVEN if by else self.stand_in(act)
                key = own.name, by, self._groups(act, by), self._streams(act, by)
                found.setdefault(key, Text(own, [], by)).acts.append(act)
        return list(found.values())

    def code(self, act, by=False, given=False):
        """The tile loop for one activation.

        by: its gradient is computed from the result. given: the activation is a run-time argument.
        """
        target = self.target(GIVEN if given else act)
        graph, roots, rows = self.k.graph, self.k.roots, dict((i, n) for n, i in self.k.rows)
        if by or (self.k.bwd and not bwd_reads_x(act)):
            # This gradient does not read its argument, whose pointer may be NULL.
            graph = Graph()
            scalars = {s: graph.var(s) for s in act.scalars}
            copies = substitute(
                self.k.graph,
                graph,
                self.k.roots + list(rows),
                {},
                act=(
                    lambda x: graph.add("act", x) if given else act.build(graph, x, scalars),
                    lambda x, dy: self._gradient(graph, act, by, x, dy, scalars),
                ),
            )
            roots, rows = copies[: len(roots)], dict(zip(copies[len(roots) :], rows.values()))
        groups = self._groups(act, by)
        keep = f"kfi_cpu_keep(keep{'[u]' if groups else ''}[j], keep_from)"
        keep = keep if target.mask_type == "uint32_t" else f"kfi_cpu_wide({keep})"
        env = {p: f"{p}_j" for s in self.k.loads for p in s.parts} | {
            KEEP: keep,
            KEEP_SCALE: "keep_scale",
        }
        lines, texts = emit(graph, roots, target, env, fixed={i: f"{n}_j" for i, n in rows.items()})
        printed = reads(graph, roots, rows)
        names_ = {
            rows[i] if i in rows else graph.nodes[i].value
            for i in printed
            if i in rows or graph.nodes[i].op == "var"
        }
        calls = [c for c in CALLS if c in {graph.nodes[i].op for i in printed}]
        if calls and not given:
            names_ |= set(act.scalars)
        scalars = [(s, i) for i, s in enumerate(self.k.scalars + list(act.scalars)) if s in names_]
        results = list(zip([s for s in self.slots if s.role in ("store", "sum")], texts))
        return TileCode(
            lines, names_, scalars, results, groups, self._streams(act, by), calls if given else []
        )

    def _gradient(self, graph, act, by, x, dy, scalars):
        return (
            graph.add("act_bwd_out", graph.var(self.k.result), dy)
            if by
            else act.build_bwd(graph, x, dy, scalars)
        )

    def _weight(self, act, by):
        """The cost of an element, in exponentials."""
        graph = Graph()
        x, dy, scalars = graph.var("x"), graph.var("dy"), {s: graph.var(s) for s in act.scalars}
        if by:
            roots = [act.build_bwd_out(graph, x, dy, scalars)]
        else:
            roots = [
                act.build_bwd(graph, x, dy, scalars) if self.k.bwd else act.build(graph, x, scalars)
            ]
        return sum(
            TRANSCENDENTAL.get(g.nodes[i].op, 0)
            for g, r in ((graph, roots), (self.k.graph, self.k.roots))
            for i in g.reachable(r)
        )

    def _groups(self, act, by):
        """True if several rows are summed at a time in registers.

        This pays if the load and store of a sum are a large part of the work: for cheap arithmetic
        and not for f16, whose conversions need a loop of their own.
        """
        return bool(self.k.sums) and self.k.dtype.word != "f16" and self._weight(act, by) == 0

    def _streams(self, act, by):
        """True if C may use non-temporal stores: the arithmetic must take less time than memory
        (bench/NOTES/cpu.md). float64 calls libm and counts eightfold."""
        work = self._weight(act, by) * (8 if self.k.dtype.compute == "f64" else 1) + self.k.keeps
        return work <= sum(s.dtype.size * len(s.parts) for s in self.k.stores) / 4

    @functools.cached_property
    def slots(self):
        """The pointers of a tile function, in order: loads, row values, derived values, results."""
        index = {s.name: i for i, s in enumerate(self.k.inputs + self.k.outputs)}
        found = [
            Slot("load", p, s.dtype, index[s.name], h, self.k)
            for s in self.k.loads
            for h, p in enumerate(s.parts)
        ]
        found += [Slot("row", s.name, s.dtype, index[s.name], 0, self.k) for s in self.k.row_loads]
        found += [
            Slot("derived", n, DTYPE[self.k.dtype.compute], 0, 0, self.k)
            for n, i in self.k.rows
            if self.k.graph.nodes[i].op != "var"
        ]
        found += [
            Slot(
                "sum" if s.role == "sum" else "store",
                p,
                self.k.dtype.acc if s.role == "sum" else s.dtype,
                index[s.name],
                h,
                self.k,
            )
            for s in self.k.outputs
            for h, p in enumerate(s.parts)
        ]
        for i, slot in enumerate(found):
            slot.index = i
        return found

    @functools.cached_property
    def part(self):
        """Elements computed at a time, as a C expression.

        Limited by the traversal's scratch memory (a tile per slot) and by the tile function's
        buffers for conversions and streaming stores.
        """
        tile = sum(s.dtype.size for s in self.slots)
        buffers = (
            GROUP if self.k.sums and self.k.dtype.word != "f16" else 1
        )  # per result, see _groups
        own = sum(4 for s in self.slots if s.staged) + buffers * sum(
            s.dtype.size for s in self.slots if s.role == "store"
        )
        room = limits.ROOM - limits.WORDS * self.k.keeps
        share = next(
            n
            for n in (1, 2, 4, 8)
            if limits.PART // n * tile <= room and limits.PART // n * own <= limits.STAGED
        )
        return "KFI_PART" + (f" / {share}" if share > 1 else "")

    @property
    def derive_reads(self):
        return self.k.graph.variables(
            [i for n, i in self.k.rows if self.k.graph.nodes[i].op != "var"]
        )

    @property
    def derive_scalars(self):
        return [(s, i) for i, s in enumerate(self.k.scalars) if s in self.derive_reads]

    @functools.cached_property
    def row_code(self):
        target = self.target(self.k.acts[0])
        derived = [(n, i) for n, i in self.k.rows if self.k.graph.nodes[i].op != "var"]
        env = {p: f"{p}_j" for s in self.k.row_loads for p in s.parts}
        lines, texts = emit(self.k.graph, [i for _, i in derived], target, env, fixed={})
        return lines, [(n, t) for (n, _), t in zip(derived, texts)]

    @property
    def run_parameters(self):
        found = ["kfi_tile_fn kfi_fn", "const char *kfi_word"] + (
            ["int kfi_reads"] if self.k.asks_reads else []
        )
        found += ["const char *kfi_rising"] if self.k.by_result else []
        found += (
            [f"{a.ctype}{a.name}" for a in self.k.tensor_arguments]
            + [f"int64_t {s}" for s in self.k.sizes]
            + ["const void *kfi_scalars"]
        )
        return (
            ", ".join(found)
            + self.dropout_parameters
            + "".join(f", {a.ctype}{a.name}" for a in self.workspace_arguments)
        )

    @property
    def shape(self):
        return "outer, channels, inner, 1" if self.k.has_channel else "rows, 0, cols, 0"

    @property
    def workspace_bytes(self):
        return f"kfi_cpu_workspace({self.shape}, {len(self.k.sums)}, {self.k.dtype.acc.size})"

    def run_arguments(self, launcher):
        k, act = self.k, launcher.act
        tile, reads = f"kfi_tile_{k.name}_{act.name}", int(bwd_reads_x(act))
        if k.by(act):
            tile, reads = f"{k.result} ? {tile}_by_result : {tile}", f"{k.result} ? 2 : {reads}"
        found = [tile, f'"{act.name}"'] + ([str(reads)] if k.asks_reads else [])
        found += [f'"{rising(act)}"' if k.by(act) and act.rising else "NULL"] if k.by_result else []
        found += (
            [a.name for a in k.tensor_arguments]
            + k.sizes
            + ["kfi_scalars" if launcher.scalar_values else "NULL"]
        )
        return ", ".join(
            found + launcher.cpu_dropout_arguments + [a.name for a in self.workspace_arguments]
        )

    runtime_type = "kfi_tile_fn"

    def runtime_code(self, word):
        """The tile function of a run-time activation."""
        return f"kfi_tile_{self.k.name}_{word}"

    def runtime_arguments(self, launcher):
        k = self.k
        found = ["kfi_code", f'"{launcher.act.name}"'] + (
            ["kfi_by ? 2 : kfi_chosen->reads"] if k.asks_reads else []
        )
        found += ["kfi_by ? kfi_chosen->rising : NULL"] if k.by_result else []
        found += [a.name for a in k.tensor_arguments] + k.sizes + ["kfi_scalars"]
        return ", ".join(
            found + launcher.cpu_dropout_arguments + [a.name for a in self.workspace_arguments]
        )

    def listing(self, act):
        """The computation in order, for readers."""
        tile = self.code(act)
        return [
            *self.row_code[0],
            *(f"{n}_j = {t};" for n, t in self.row_code[1]),
            *tile.lines,
            *(f"{s.store(t)};" for s, t in tile.results),
        ]
