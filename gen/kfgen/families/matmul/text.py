# SPDX-License-Identifier: Apache-2.0
"""Formulas of the matmul family: for contracts, and as NumPy and torch statements."""

from kfgen.language.formulas import LIBRARIES, Printer, inlined
from kfgen.language.primitives import KEEP
from kfgen.model import contract

DOT = "kfi_dot"


def _turned(text, turned):
    return f"{text}^T" if turned else text


def _forward(k):
    left, right = ("t" in k.form[:1], "t" in k.form[1:])
    return [
        f"{p.name} = {_turned(k.factor, left)} . {_turned(p.weight.name, right)}"
        for p in k.products
    ]


def _added(k, s):
    """The text that adds beta times the stored value; only whole arguments accumulate."""
    return f" + beta * {s.name}" if k.accumulated(s) and k.tensor_of(s.name) == s.name else ""


def formulas(k, by=False):
    """The formulas for readers, without names of generated code."""
    return [line.replace(DOT, "dot") for line in _formulas(k, by)]


def _formulas(k, by):
    """One line per value, in the expression language; a . b is a matrix product, ^T a transpose."""
    before = [
        f"{', '.join(halves)} = halves({s.name})"
        for s in k.inputs
        if (halves := k.halves_of(s)) and s.reads != "never"
    ]
    load = [contract.assigned(name, text) for name, text in k.op.own["load"].items()]
    behind = [
        f"{s.name} = both({', '.join(halves)}){_added(k, s)}"
        for s in k.outputs
        if (halves := k.halves_of(s))
    ]
    if not k.bwd:
        lines = [
            contract.assigned(name, text) for name, text in (k.op.saved | k.op.outputs).items()
        ]
        return (
            before
            + load
            + _forward(k)
            + [
                f"{line} + beta * {line.split(' =')[0]}"
                if k.accumulates and i >= len(k.op.saved)
                else line
                for i, line in enumerate(lines)
            ]
            + behind
        )
    graph, roots = k.graph_by() if by else (k.graph, k.roots)
    left, right = k.form
    dacc = roots[len(k.outs) : -1]
    elements, inner = (
        [i for i, s in enumerate(k.outs) if s.kind in kinds]
        for kinds in (("elem", "row"), ("left", "depth"))
    )
    named = {root: f"d{p.name}" for root, p in zip(dacc, k.products) if graph.nodes[root].args}
    found, texts = contract.write(graph, [*dacc, *(roots[i] for i in elements)], named)
    dacc_of, text_of = texts[: len(dacc)], dict(zip(elements, texts[len(dacc) :]))
    dot = " + ".join(
        f"{d} . {_turned(p.weight.name, right == 'n')}"
        if left == "n"
        else f"{_turned(p.weight.name, right == 't')} . {d}^T"
        for d, p in zip(dacc_of, k.products)
    )
    own, texts = contract.write(graph, [roots[i] for i in inner], letter="u")
    plain = all(graph.nodes[roots[i]].value == DOT for i in inner)
    text_of |= dict(zip(inner, [dot] * len(inner) if plain else texts))
    found += load if plain else [*load, f"{DOT} = {dot}", *own]
    for i, s in enumerate(k.outs):
        if s.kind == "right":
            d = next(d for d, p in zip(dacc_of, k.products) if p.weight.name == s.of)
            text = (
                f"{d}^T . {_turned(k.factor, left == 't')}"
                if right == "t"
                else f"{_turned(k.factor, left == 'n')} . {d}"
            )
        else:
            text = f"sum over rows of {text_of[i]}" if s.role == "sum" else text_of[i]
        found.append(f"{s.name} = {text}{_added(k, s)}")
    return before + found + behind


def _set(k, s, text):
    """The statement that sets an output, or one of two joined ones."""
    return (
        f"{s.name} = ({text}){_added(k, s)} if beta else {text}"
        if _added(k, s)
        else f"{s.name} = {text}"
    )


def _split(k, s):
    """The two tensors of a joined argument, as slices."""
    before = ":, " * k.joined_at(s)
    return f"{s.name}[{before}:cols], {s.name}[{before}cols:]"


def _behind(k, lib):
    """The statements that set joined outputs."""
    found = []
    for s in k.outputs:
        if halves := k.halves_of(s):
            found.append(_set(k, s, f"{lib.join}(({', '.join(halves)}), {k.joined_at(s)})"))
    return found


def statements(k, act, library, by=False):
    """The statements of one library."""
    lib = LIBRARIES[library]
    graph, roots = inlined(k, act, by)
    everywhere = frozenset((0,))
    axes = (
        dict.fromkeys((*k.scalars, *act.scalars, "keep_scale"))
        | {s.name: everywhere for s in k.ins}
        | {KEEP: everywhere, DOT: everywhere}
    )
    axes |= {p.name: everywhere for p in k.products}
    turned = {"left": k.form[0] == "t", "right": k.form[1] == "t"}
    read = graph.variables(roots) | {p.weight.name for p in k.products}
    lines = [
        f"{', '.join(halves)} = {_split(k, s)}"
        for s in k.inputs
        if (halves := k.halves_of(s)) and read & set(halves)
    ]
    lines += [f"{s.name} = {s.name}.swapaxes(-1, -2)" for s in k.operands if turned.get(s.kind)]
    lines += [
        f"{s.name} = {s.name}.reshape(batch, 1, {s.kind == 'row' and 'cols' or 'depth'})"
        for s in k.operands
        if s.kind in ("row", "depth") and s.name in read
    ]

    def printed(chosen):
        printer = Printer(lib, None, graph, axes, None)
        printer.run(chosen)
        return printer.lines, [printer.at(r) for r in chosen]

    def back(text, turn):
        return f"({text}).swapaxes(-1, -2)" if turn else text

    own, [factor] = printed(roots[-1:])
    lines += [*own, f"factor_ = {factor}"]
    if not k.bwd:
        lines += [f"{p.name} = factor_ @ {p.weight.name}" for p in k.products]
        own, texts = printed(roots[:-1])
        lines += own
        return lines + [_set(k, s, text) for s, text in zip(k.outs, texts)] + _behind(k, lib)
    elements = [i for i, s in enumerate(k.outs) if s.kind in ("elem", "row")]
    first = len(k.outs)
    own, texts = printed(
        [roots[first + i] for i in range(len(k.products))] + [roots[i] for i in elements]
    )
    lines += own + [f"dacc{i}_ = {text}" for i, text in enumerate(texts[: len(k.products)])]
    terms = [f"dacc{i}_ @ {p.weight.name}.swapaxes(-1, -2)" for i, p in enumerate(k.products)]
    lines += [f"{DOT} = {' + '.join(terms)}"]
    found = {k.outs[i].name: text for i, text in zip(elements, texts[len(k.products) :])}
    inner = [i for i, s in enumerate(k.outs) if s.kind in ("left", "depth")]
    own, texts = printed([roots[i] for i in inner])
    lines += own
    found |= {k.outs[i].name: text for i, text in zip(inner, texts)}
    for s in k.outs:
        if s.kind == "right":
            number = next(i for i, p in enumerate(k.products) if p.weight.name == s.of)
            text = back(f"factor_.swapaxes(-1, -2) @ dacc{number}_", turned["right"])
        elif s.role == "sum":
            full = "cols" if s.kind == "row" else "depth"
            whole = f"{lib.name}.broadcast_to({found[s.name]}, (batch, rows, {full}))"
            text = f"{lib.reductions['sum']}({whole}, 1)"
        else:
            text = back(found[s.name], s.kind == "left" and turned["left"])
        lines.append(_set(k, s, text))
    return lines + _behind(k, lib)
