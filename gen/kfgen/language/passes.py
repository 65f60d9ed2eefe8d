# SPDX-License-Identifier: Apache-2.0
"""Splits expressions that reduce over a row into passes over it.

A reduction that depends on another one needs a pass of its own (expr.stages). A pass computes the
terms of its reductions per element; between passes, values per row are computed from their results;
the last pass computes the outputs. Dtypes and backend are given by an emit.Target.
"""

from dataclasses import dataclass, field, replace

from kfgen.language.emit import emit, reads
from kfgen.language.expr import Graph, stages
from kfgen.language.primitives import ELEM, KEEP, REDUCTIONS, ROW, TRANSCENDENTAL

REDUCTION_OF = {node: name for name, node in REDUCTIONS.items()}  # rowmax: max
# Nodes whose values a later pass reads from an earlier one instead of computing them again: they
# are expensive, or need a load and two conversions (stored). Dropout's results belong to them,
# since the mask would be drawn again (costly()).
COSTLY = {*TRANSCENDENTAL, "act", "act_bwd", "stored"}
CODES = {"sum": "KFI_SUM", "max": "KFI_MAX", "min": "KFI_MIN", "prod": "KFI_PROD"}


@dataclass
class Reduction:
    name: str
    word: str  # sum, max, min, prod
    text: str = ""  # text of a term

    @property
    def code(self):
        return CODES[self.word]


@dataclass
class Step:
    """Statements that compute named values per row."""

    lines: list
    values: list  # (name, text)
    printed: set  # names that the texts read


@dataclass
class Pass:
    """A pass over a row: reductions of its elements, then the values per row computed from them."""

    reductions: list
    lines: list
    reads: set  # names of operands and scalars
    after: Step
    sums: dict  # {gradient summed over rows: text of its term}, if no later pass is needed
    first: int  # number of reductions in the passes before
    keeps: list  # values per element that a later pass reads
    head: list  # statements before the loop over elements
    printed: set  # names that the statements and terms read
    calls: list = field(default_factory=list)  # run-time activation: calls before that loop

    @property
    def codes(self):
        """C expression of the reductions' codes, 2 bits each."""
        return " | ".join(
            r.code + (f" << {2 * i}" if i else "") for i, r in enumerate(self.reductions)
        )


@dataclass
class Program:
    before: Step
    passes: list
    lines: list  # the last pass
    reads: set
    texts: dict  # {output: text}
    names: list  # names of the computed values per row
    kept: list  # names of values per element that are cached between passes
    head: list  # statements before the loop of the last pass
    printed: set  # names that the last pass reads
    calls: list = field(default_factory=list)  # run-time activation: calls before that loop
    groups: "Program" = None  # gradients summed over a channel's elements of a row

    def listing(self):
        """Returns the computed statements in order, for documentation."""

        def step(found):
            return [*found.lines, *(f"{name} = {text};" for name, text in found.values)]

        lines = step(self.before)
        if self.groups:
            lines += [
                "over a channel's elements of the row:",
                *(f"    {line}" for line in step(self.groups.before) + self.groups.lines),
            ]
            lines += [f"    {name} = sum of {text};" for name, text in self.groups.texts.items()]
        for p in self.passes:
            lines += [
                "over the row:",
                *(f"    {line}" for line in p.lines),
                *(f"    {r.name} = {r.word} of {r.text};" for r in p.reductions),
            ]
            lines += [*(f"    {name} = {text};" for name, text in p.sums.items()), *step(p.after)]
        return lines + [
            "each element:",
            *(f"    {line}" for line in self.lines),
            *(f"    {name} = {text};" for name, text in self.texts.items()),
        ]


def copy(graph, roots, replaced, act=None):
    """Copies roots into a new graph; returns (graph, roots). `stop` is dropped, nodes in `replaced`
    become variables of these names, `act` replaces activations as in gradient.substitute.
    """
    target = Graph(dict(graph.levels), graph.whole)
    target.levels |= {name: graph.level(node) for node, name in replaced.items()}
    new = {}
    for i in graph.reachable(roots):
        node = graph.nodes[i]
        args = [new[a] for a in node.args]
        if i in replaced:
            new[i] = target.var(replaced[i])
        elif node.op == "stop":
            new[i] = args[0]
        elif act and node.op in ("act", "act_bwd"):
            new[i] = act[node.op == "act_bwd"](target, *args)
        else:
            new[i] = target.add(node.op, *args, value=node.value)
    return target, [new[r] for r in roots]


def picks(graph, roots):
    """Returns {pick node: name} for the roots."""
    found = [i for i in graph.reachable(roots) if graph.nodes[i].op == "pick"]
    return {i: "_at_".join(graph.nodes[a].value for a in graph.nodes[i].args) for i in found}


def stored(graph):
    """Returns {node: name} of the outputs that other expressions read."""
    return {i: node.value for i, node in enumerate(graph.nodes) if node.op == "stored"}


def inlined(graph, roots, act, replaced=()):
    """Copies roots into a new graph with the activation's expressions inlined; see copy()."""

    def scalars(g):
        return {s: g.var(s) for s in act.scalars}

    return copy(
        graph,
        roots,
        dict(replaced),
        act=(
            lambda g, x: act.build(g, x, scalars(g)),
            lambda g, x, dy: act.build_bwd(g, x, dy, scalars(g)),
        ),
    )


def reduced(graph, roots):
    """Returns the operations of each pass's reductions, in program order."""
    stage = stages(graph, roots)
    reach = graph.reachable(roots)
    return [
        [REDUCTION_OF[graph.nodes[i].op] for i in reach if stage.get(i) == d]
        for d in range(max(stage.values(), default=-1) + 1)
    ]


def costly(graph, i):
    node = graph.nodes[i]
    return node.op in COSTLY or (node.op == "where" and graph.nodes[node.args[0]].value == KEEP)


def program(graph, roots, target, env, sums=(), keep=None, each="{}", split=None):
    """Returns the Program that computes the roots {name: node}. env: {variable: text}.

    sums: roots to compute in the earliest possible pass, so that later passes need not cache their
    arguments. keep: name of an expensive value -> text that reads it in a later pass, with {} for
    the expression that computes it again; None: always compute again. each: text that
    reads a value per row, with {} for its name. split: writes calls of a run-time activation as
    statements of their own (runtime_activation.split).
    """
    return _Builder(graph, roots, target, env, sums, keep, each, split).program()


class _Builder:
    def __init__(self, graph, roots, target, env, sums, keep, each, split):
        self.graph, self.roots, self.target, self.env = graph, roots, target, env
        self.keep, self.split = keep, split
        nodes = list(roots.values())
        self.reach = graph.reachable(nodes)
        self.stage = stages(graph, nodes)
        self.count = max(self.stage.values(), default=-1) + 1
        self.depth = self._depths()
        self.wanted = self._row_values(nodes)
        self.name = {i: f"row{k}" for k, i in enumerate(self.wanted)}
        self.spelled = {i: each.format(n) for i, n in self.name.items()}
        self.terms = [
            [graph.nodes[i].args[0] for i in self._reductions(d)] for d in range(self.count)
        ]
        self.early = [
            {n: i for n, i in roots.items() if n in sums and self.depth[i] == d}
            for d in range(self.count)
        ]
        self.last = {
            n: i
            for n, i in roots.items()
            if graph.level(i) == ELEM and not any(n in e for e in self.early)
        }
        self.work = [[*self.terms[d], *self.early[d].values()] for d in range(self.count)]
        self.work.append(list(self.last.values()))
        self.done = [
            {i: n for i, n in self.spelled.items() if self.depth[i] <= d} for d in range(self.count)
        ] + [self.spelled]
        self.home, self.kept = {}, {}  # {costly node: its first pass}, {node: name if read again}
        for d in range(self.count + 1) if keep else ():
            for i in reads(graph, self.work[d], self.done[d]):
                if costly(graph, i) and i not in self.done[d] and self.home.setdefault(i, d) != d:
                    self.kept.setdefault(i, f"kept{len(self.kept)}")  # a third pass may read it too

    def _depths(self):
        """{node: number of passes that must end before it is known}."""
        depth = {}
        for i in self.reach:
            depth[i] = max((depth[a] for a in self.graph.nodes[i].args), default=0)
            if i in self.stage:
                depth[i] = self.stage[i] + 1
        return depth

    def _row_values(self, nodes):
        """Values per row that code per element reads, or that are reductions or outputs."""
        graph = self.graph
        wanted = {
            a
            for i in self.reach
            if graph.level(i) == ELEM
            or i in self.stage
            or graph.is_bool(i)  # conditions are not stored
            if not graph.compares_whole(i)
            for a in graph.nodes[i].args
            if graph.level(a) == ROW and not graph.is_bool(a)
        }
        wanted |= {i for i in nodes if graph.level(i) == ROW}
        return [
            i for i in self.reach if (i in wanted or i in self.stage) and graph.nodes[i].op != "var"
        ]

    def _reductions(self, d):
        return [i for i in self.reach if self.stage.get(i) == d]

    def _between(self, d):
        """The values per row that become known before pass d."""
        found = [i for i in self.wanted if i not in self.stage and self.depth[i] == d]
        done = {
            i: n
            for i, n in self.spelled.items()
            if self.depth[i] < d or (i in self.stage and self.depth[i] == d)
        }
        exact = replace(self.target, cheap=frozenset())  # once per row: exact costs nothing
        printed = set()
        lines, texts = emit(
            self.graph, found, exact, self.env, fixed=done, round_roots=True, printed=printed
        )
        return Step(lines, list(zip((self.name[i] for i in found), texts)), printed)

    def _names(self, d):
        """Names that pass d reads, with "act" if it calls the activation."""
        nodes = [self.graph.nodes[i] for i in reads(self.graph, self.work[d], self.done[d])]
        calls = any(n.op in ("act", "act_bwd") for n in nodes)
        return {n.value for n in nodes if n.op == "var"} | ({"act"} if calls else set())

    def _code(self, d):
        """(lines, texts, names read, statements before the loop, names printed, calls of the
        activation).
        """
        own = {i: (n, "{}" if self.home[i] == d else self.keep(n)) for i, n in self.kept.items()}
        work, done, printed = self.work[d], self.done[d], set()
        if self.split:
            # A pass also computes the values that later passes read from it.
            here = [i for i in self.kept if self.home[i] == d]
            again = {i for i in self.kept if self.home[i] != d}
            calls, first, fixed = self.split(
                self.graph, work + here, self.target, self.env, done, own, again
            )
            lines, texts = emit(
                self.graph, work + here, self.target, self.env, fixed, own, printed=printed
            )
            return first + lines, texts[: len(work)], self._names(d), [], printed, calls
        head = {} if self.target.masks else None
        lines, texts = emit(
            self.graph, work, self.target, self.env, done, own, head=head, printed=printed
        )
        before = [text.replace("{}", n) for text, n in (head or {}).items()]
        return lines, texts, self._names(d), before, printed, []

    def _pass(self, d, first):
        lines, texts, read, *more = self._code(d)
        reductions = [
            Reduction(self.name[i], REDUCTION_OF[self.graph.nodes[i].op], text)
            for i, text in zip(self._reductions(d), texts)
        ]
        sums = dict(zip(self.early[d], texts[len(self.terms[d]) :]))
        keeps = [n for i, n in self.kept.items() if self.home[i] == d]
        return Pass(reductions, lines, read, self._between(d + 1), sums, first, keeps, *more)

    def program(self):
        firsts = [sum(map(len, self.terms[:d])) for d in range(self.count)]
        passes = [self._pass(d, first) for d, first in enumerate(firsts)]
        lines, texts, read, *more = self._code(self.count)
        found = dict(zip(self.last, texts)) | {
            n: self.spelled.get(i, self.env.get(self.graph.nodes[i].value, ""))
            for n, i in self.roots.items()
            if self.graph.level(i) == ROW
        }
        names, kept = [self.name[i] for i in self.wanted], list(self.kept.values())
        return Program(self._between(0), passes, lines, read, found, names, kept, *more)
