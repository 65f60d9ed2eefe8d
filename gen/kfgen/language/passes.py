# SPDX-License-Identifier: Apache-2.0
"""Expressions that reduce over a row, as passes over it.

A reduction that waits for another one is a pass of its own (expr.stages). Within a pass the terms of its reductions are
computed element by element; between passes, once a row, what is made of their results; the last pass computes the results.
What is here knows neither dtypes nor a backend: how things are spelled is given (emit.Target).
"""

from dataclasses import dataclass, field, replace

from kfgen.language.emit import emit, reads
from kfgen.language.expr import Graph, stages
from kfgen.language.primitives import ELEM, KEEP, REDUCTIONS, ROW, TRANSCENDENTAL

REDUCTION_OF = {node: name for name, node in REDUCTIONS.items()}  # rowmax: max
# What a later pass takes as an earlier one left it: much to compute again, or, of a stored sum, a load and two conversions. And
# what dropout has made, whose mask would be drawn again (costly).
COSTLY = {*TRANSCENDENTAL, "act", "act_bwd", "stored"}
CODES = {"sum": "KFI_SUM", "max": "KFI_MAX", "min": "KFI_MIN", "prod": "KFI_PROD"}


@dataclass
class Reduction:
    name: str
    word: str  # sum, max, min, prod
    text: str = ""  # of a term

    @property
    def code(self):
        return CODES[self.word]


@dataclass
class Step:
    """Statements that set named values of a row."""

    lines: list
    values: list  # (name, text)


@dataclass
class Pass:
    """Over a row's elements: what is added up, and what is then computed for the row."""

    reductions: list
    lines: list
    reads: set  # the names of operands and scalars
    after: Step
    sums: dict  # value of a gradient that is summed over the rows: its text, where it needs no later pass
    first: int  # reductions of the passes before
    keeps: list  # values of an element that a later pass takes from here
    head: list  # statements ahead of the loop over elements
    calls: list = field(
        default_factory=list
    )  # of a chosen activation, ahead of that loop (runtime_activation.py)

    @property
    def codes(self):
        """How each is reduced, 2 bits each."""
        return " | ".join(
            r.code + (f" << {2 * i}" if i else "") for i, r in enumerate(self.reductions)
        )


@dataclass
class Program:
    before: Step
    passes: list
    lines: list  # the last pass
    reads: set
    texts: dict  # value of an output: its text
    names: list  # of a row's values that are computed
    kept: list  # of an element's values that are kept between passes
    head: list  # statements ahead of the loop over the last pass's elements
    calls: list = field(default_factory=list)  # of a chosen activation, ahead of that loop
    groups: "Program" = None  # gradients that are added up over a channel's elements of a row

    def listing(self):
        """What is computed, in order, for a reader."""

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
    """(a graph, its roots): without `stop`, nodes in `replaced` as the variables they name, activations by `act` (substitute)."""
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
    """{node of a pick: its name}, of those that the roots need."""
    found = [i for i in graph.reachable(roots) if graph.nodes[i].op == "pick"]
    return {i: "_at_".join(graph.nodes[a].value for a in graph.nodes[i].args) for i in found}


def stored(graph):
    """{node: name} of the outputs that others read."""
    return {i: node.value for i, node in enumerate(graph.nodes) if node.op == "stored"}


def inlined(graph, roots, act, replaced=()):
    """(a graph, its roots) with the activation's own expressions, nodes in `replaced` as the variables they name."""

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
    """The words of each pass's reductions, in the order of the program."""
    stage = stages(graph, roots)
    reach = graph.reachable(roots)
    return [
        [REDUCTION_OF[graph.nodes[i].op] for i in reach if stage.get(i) == d]
        for d in range(max(stage.values(), default=-1) + 1)
    ]


def costly(graph, i):
    node = graph.nodes[i]
    return node.op in COSTLY or (node.op == "where" and graph.nodes[node.args[0]].value == KEEP)


def program(graph, roots, target, env, sums=(), keep="", each="{}", split=None):
    """The passes that compute the roots {name: node}. env: how variables are spelled. sums: names of roots that are taken as soon
    as they can be, since what they are made of need not be kept then. keep: how a costly value that an earlier pass has computed is
    spelled, with `name` for its name and {} for how it would be computed again, which it is without `keep`. each: how a row's value is
    spelled where it is read, {} is its name. split: what writes calls of a chosen activation apart (chosen.split)."""
    nodes = list(roots.values())
    reach = graph.reachable(nodes)
    stage = stages(graph, nodes)
    depth = {}
    for i in reach:
        depth[i] = max((depth[a] for a in graph.nodes[i].args), default=0)
        if i in stage:
            depth[i] = stage[i] + 1
    # Values of a row that the elements' code reads, or that are results.
    wanted = {
        a
        for i in reach
        if graph.level(i) == ELEM
        or i in stage
        or graph.is_bool(i)  # conditions have no place of their own
        if not graph.compares_whole(i)
        for a in graph.nodes[i].args
        if graph.level(a) == ROW and not graph.is_bool(a)
    }
    wanted |= {i for i in nodes if graph.level(i) == ROW}
    wanted = [i for i in reach if (i in wanted or i in stage) and graph.nodes[i].op != "var"]
    name = {i: f"row{k}" for k, i in enumerate(wanted)}
    spelled = {i: each.format(n) for i, n in name.items()}

    def between(d):
        found = [i for i in wanted if i not in stage and depth[i] == d]
        done = {i: n for i, n in spelled.items() if depth[i] < d or (i in stage and depth[i] == d)}
        lines, texts = emit(
            graph, found, replace(target, cheap=frozenset()), env, fixed=done, round_roots=True
        )  # once a row: exact costs nothing
        return Step(lines, list(zip((name[i] for i in found), texts)))

    def named(found, done):
        return {
            graph.nodes[i].value for i in reads(graph, found, done) if graph.nodes[i].op == "var"
        } | (
            {"act"}
            if any(graph.nodes[i].op in ("act", "act_bwd") for i in reads(graph, found, done))
            else set()
        )

    count = max(stage.values(), default=-1) + 1
    terms = [[graph.nodes[i].args[0] for i in reach if stage.get(i) == d] for d in range(count)]
    early = [{n: i for n, i in roots.items() if n in sums and depth[i] == d} for d in range(count)]
    last = {
        n: i for n, i in roots.items() if graph.level(i) == ELEM and not any(n in e for e in early)
    }
    work = [[*terms[d], *early[d].values()] for d in range(count)] + [list(last.values())]
    done = [{i: n for i, n in spelled.items() if depth[i] <= d} for d in range(count)] + [spelled]
    home, kept = {}, {}  # the pass that computes a costly value first; those that others read
    for d in range(count + 1) if keep else ():
        for i in reads(graph, work[d], done[d]):
            if costly(graph, i) and i not in done[d] and home.setdefault(i, d) != d:
                kept.setdefault(i, f"kept{len(kept)}")  # a third pass may read it too

    def code(d):
        own = {i: (n, "{}" if home[i] == d else keep.replace("name", n)) for i, n in kept.items()}
        head = {} if target.masks else None
        if split:  # what a later pass takes from here is there, though calls alone should read it
            here = [i for i in kept if home[i] == d]
            calls, first, fixed = split(
                graph, work[d] + here, target, env, done[d], own, {i for i in kept if home[i] != d}
            )
            lines, texts = emit(graph, work[d] + here, target, env, fixed=fixed, named=own)
            return first + lines, texts[: len(work[d])], named(work[d], done[d]), [], calls
        lines, texts = emit(graph, work[d], target, env, fixed=done[d], named=own, head=head)
        return (
            lines,
            texts,
            named(work[d], done[d]),
            [text.replace("{}", n) for text, n in (head or {}).items()],
            [],
        )

    passes, first = [], 0
    for d in range(count):
        lines, texts, read, head, calls = code(d)
        reductions = [
            Reduction(name[i], REDUCTION_OF[graph.nodes[i].op], text)
            for i, text in zip([i for i in reach if stage.get(i) == d], texts)
        ]
        keeps = [n for i, n in kept.items() if home[i] == d]
        passes.append(
            Pass(
                reductions,
                lines,
                read,
                between(d + 1),
                dict(zip(early[d], texts[len(terms[d]) :])),
                first,
                keeps,
                head,
                calls,
            )
        )
        first += len(terms[d])
    lines, texts, read, head, calls = code(count)
    found = dict(zip(last, texts)) | {
        n: spelled.get(i, env.get(graph.nodes[i].value, ""))
        for n, i in roots.items()
        if graph.level(i) == ROW
    }
    return Program(
        between(0),
        passes,
        lines,
        read,
        found,
        [name[i] for i in wanted],
        list(kept.values()),
        head,
        calls,
    )
