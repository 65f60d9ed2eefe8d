# SPDX-License-Identifier: Apache-2.0
"""The reference page: every op and every activation, from the same model as the headers."""

import pathlib

from kfgen import contract, names, render


def direction(kernels):
    """One table for all dtypes of an op in one direction: what differs between them is written T or acc."""
    k = kernels[0]
    types = {o.name: o.dtype for o in k.op.operands} | dict.fromkeys(k.op.saved, "acc")

    def word(s):
        own = types.get(s.name) or (types.get(s.name[1:], "T") if k.bwd and s.role != "in" else "T")
        if own != "T":
            return own
        return "U" if k.op.types == "pairs" and s.role == "out" else "T"

    def overlap(s):
        return " or ".join(f"`{n}`" for n in contract.in_place(k, s)) + (f"; `{s.same_as}`, which is equal" if s.same_as else "")

    tensors = [{
        "name": s.name, "role": {"in": "in", "out": "out", "sum": "out, summed"}[s.role], "kind": s.kind, "shape": contract.shape(k, s),
        "dtype": word(s), "null": contract.nullable(k, s) or "no", "overlap": overlap(s)} for s in k.inputs + k.outputs]
    per_dtype = {}
    for other in kernels:
        per_dtype.setdefault(contract.arithmetic(other), []).append(other.words)
    return {
        "formulas": contract.formulas(k), "tensors": tensors, "flops": k.flops, "has_act": k.has_act,
        "gathers": contract.gathers(k), "bytes": [(o.words, [contract.moved_bytes(o, a) for a in (o.acts[0], o.acts[-1])]) for o in kernels],
        "arithmetic": [(", ".join(words), text) for text, words in per_dtype.items()], "errors": contract.errors(k),
        "workspace": k.workspace if k.scratch else "", "sizes": k.sizes, "launcher": k.launchers[0], "vec": k.cuda.vec}


def op_entry(op, kernels):
    launchers = {}
    for k in kernels:
        for launcher in k.launchers:
            launchers.setdefault(launcher.act.name, []).append(launcher.name)
    return {
        "op": op, "title": op.pattern, "stem": names.stem(op.pattern), "forward": direction([k for k in kernels if not k.bwd]),
        "backward": direction([k for k in kernels if k.bwd]) if any(k.bwd for k in kernels) else None,
        "dtypes": list(dict.fromkeys(k.words for k in kernels)), "activations": [a.name for a in kernels[0].acts], "launchers": launchers,
        "scalars": op.scalars, "dropout": op.dropout}


def edges(act):
    return ", ".join(f"{x} → {y}" for x, y in act.edges.items()), ", ".join(f"{x} → {y}" for x, y in act.dedges.items())


def spaced(page):
    """A blank line between blocks of different kinds, and no two: Jinja's line statements swallow those of the template."""
    found, fenced, before = [], False, ""
    for line in page.strip().split("\n"):
        kind = "" if not line else next((k for k in ("#", "|", "- ", "**", "<", "```") if line.startswith(k)), "text")
        kind = "- " if line.startswith("  ") and before == "- " else kind
        if not fenced and kind and found[-1:] != [""] and found and (kind != before or kind in ("#", "**", "<")):
            found.append("")
        if fenced or line or found[-1:] != [""]:
            found.append(line)
        fenced ^= line.startswith("```")
        before = kind
    return "\n".join(found) + "\n"


def text(selection):
    env = render.environment()
    ops = [op_entry(op, selection.kernels(op)) for op in selection.ops if selection.kernels(op)]
    count = sum(len(k.launchers) for k in selection.all_kernels())
    acts = [{"a": a, "edges": edges(a), "expr": contract.one_line(a.expr), "dexpr": a.dexpr and contract.one_line(a.dexpr)}
            for a in selection.activations]
    return spaced(env.get_template("docs/reference.md.j2").render(
        version=render.version(), ops=ops, acts=acts, count=count, specs=[p.name for p in selection.spec.files]))


def write(selection, out):
    """Writes out/reference.md; returns its path."""
    path = pathlib.Path(out) / "reference.md"
    render.write(path, text(selection))
    return path
