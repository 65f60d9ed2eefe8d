# SPDX-License-Identifier: Apache-2.0
"""What a kernel promises, in words: the comment above it in the generated header, and the rows of the reference page."""

import ast
import functools
import textwrap

from kfgen.language.primitives import BOOLEAN, PRIMITIVES
from kfgen.model import names

INFIX = {
    "add": ("+", 3),
    "sub": ("-", 3),
    "mul": ("*", 4),
    "div": ("/", 4),
    "lt": ("<", 2),
    "le": ("<=", 2),
    "gt": (">", 2),
    "ge": (">=", 2),
    "eq": ("==", 2),
    "ne": ("!=", 2),
    "and": ("and", 1),
    "or": ("or", 1),
}
ATOM, WIDTH = 9, 94


# ---- formulas ----------------------------------------------------------------------------------------------------


def formulas(k, by=False):
    """One line per result, in the expression language: the spec's own text, or the gradient that was derived from it; by: of the
    activation's result."""
    return k.formulas(by)


def of_elements(k, by):
    """Of kernels whose results are made of the elements beside them."""
    if not k.bwd:
        return [
            f"{name} = {one_line(text)}"
            for name, text in (k.op.values_of_rows | k.op.outputs).items()
        ]
    graph, roots = k.graph_by() if by else (k.graph, [root for s in k.outputs for root in s.exprs])
    results = [(part, s) for s in k.outputs for part in s.parts]
    lines, texts = write(graph, roots)
    added = [
        f"sum over {k.summed_over} of {text}" if s.role == "sum" else text
        for (_, s), text in zip(results, texts)
    ]
    return lines + [
        f"{part} = {text}{f' + beta * {part}' if k.accumulates else ''}"
        for (part, _), text in zip(results, added)
    ]


@functools.lru_cache(1024)
def one_line(text):
    """An expression of a spec, its statements joined."""
    return "; ".join(ast.unparse(statement) for statement in ast.parse(text.strip()).body)


def write(graph, roots, named=None, letter="t"):
    """(lines that name what is used twice, a text per root). named: {node: its name}. letter: of other names."""
    uses = dict.fromkeys(graph.reachable(roots), 0)
    for i in [*roots, *(a for user in uses for a in graph.nodes[user].args)]:
        uses[i] += 1
    lines, text = [], {}
    for i, count in uses.items():
        node = graph.nodes[i]

        def at(k, level, node=node):
            body, own = text[node.args[k]]
            return body if own >= level else f"({body})"

        if node.op in ("const", "var"):
            body, level = (
                (f"{node.value:.7g}" if isinstance(node.value, float) else str(node.value)),
                ATOM,
            )
        elif node.op in INFIX:
            sign, level = INFIX[node.op]
            body = f"{at(0, level)} {sign} {at(1, level + 1)}"
        elif node.op in ("neg", "not"):
            body, level = ("-" if node.op == "neg" else "not ") + at(0, 5), 4
        else:
            body, level = f"{node.op}({', '.join(text[a][0] for a in node.args)})", ATOM
        if named and i in named:
            lines.append(f"{named[i]} = {body}")
            body, level = named[i], ATOM
        elif count > 1 and node.args:
            lines.append(f"{letter}{len(lines)} = {body}")
            body, level = f"{letter}{len(lines) - 1}", ATOM
        text[i] = (body, level)
    return lines, [text[r][0] for r in roots]


# ---- operands ----------------------------------------------------------------------------------------------------


def shape(k, stream):
    return f"[{', '.join(k.shape(stream))}]"


def in_place(k, stream):
    """The inputs that may be the same pointer as this output."""
    if stream.place_of:
        return [stream.place_of]
    if stream.is_row or stream.role == "in" or k.family.codes.get(stream.kind, 0) > 1:
        return []
    return [
        s.name
        for s in k.inputs
        if s.kind == stream.kind and s.dtype.size == stream.dtype.size and s.reads != "never"
    ]


def nullable(k, stream):
    """Why the pointer may be NULL; empty if it may not."""
    if stream.role != "in":
        return "" if stream.required else "skipped if NULL"
    if stream.reads == "never":
        return "not read, may be NULL"
    if stream.absent is not None:
        return f"NULL stands for {stream.absent if isinstance(stream.absent, str) else format(stream.absent, 'g')}"
    if stream.reads == "result":
        return f"NULL: gradients by the inputs; not read but for activation {', '.join(a.name for a in k.acts if k.by(a))}"
    if stream.reads == "act":
        found = [a.name for a in k.acts if not k.reads(stream, a)]
        found += [f"where {k.result} is given and read"] if any(map(k.by, k.acts)) else []
        return (
            f"may be NULL {'for activation ' if len(found) > 1 or not k.by_result else ''}{', and '.join(found)}"
            if found
            else ""
        )
    return ""


def notes(k, stream):
    found = [nullable(k, stream)]
    if stream.role == "in" and (below := k.below(stream)):
        found.append(f"outside 0 to {below} - 1: {'no gradient' if k.bwd else 'NaN is picked'}")
    if companions := in_place(k, stream):
        found.append(f"may be {' or '.join(companions)}")
    if stream.same_as:
        found.append(f"equals {stream.same_as}: may be one pointer")
    return "; ".join(n for n in found if n)


# ---- arithmetic --------------------------------------------------------------------------------------------------

LONG = {
    "f32": "float32",
    "f64": "float64",
    "f16": "float16",
    "bf16": "bfloat16",
    "i32": "int32",
    "i64": "int64",
}


def arithmetic(k):
    """What is computed in, and where it is rounded."""
    stored = sorted({s.dtype.word for s in k.outputs if s.var != "I"})
    if k.op.types == "pairs":
        if k.dtypes[1] in ("i32", "i64"):
            return "Out of range saturates" + (
                "." if k.dtypes[0] in ("i32", "i64") else "; fractions are cut off; NaN gives 0."
            )
        return f"At most one rounding, straight from {k.dtypes[0]}."
    if k.dtype.compute in ("i32", "i64"):
        return "Integer arithmetic, which wraps."
    text = f"Computed in {LONG[k.dtype.compute]}{k.order_note}"
    text += (
        "." if stored == [k.dtype.compute] else f", results rounded once, to {' or '.join(stored)}."
    )
    if k.rounded:
        text += " Factors of products may be rounded to TF32 (11 bits) first; tensors are float32."
    if k.added:
        acc = k.dtype.acc.word
        text += f" Sums: {LONG[acc]} parts in a fixed order" + (
            ", added up in float64." if acc != "f64" else "."
        )
    return text


def moved_bytes(k, act):
    """Per element of the result, every tensor of its shape once."""
    along = [
        s for s in k.inputs + k.outputs if not s.is_row and s not in k.gathered_inputs
    ]  # by the activation's result, where it may be
    return sum(
        s.dtype.size * k.per_element(s)
        for s in along
        if s.role != "in" or not k.bwd or (not k.unread(s, act) and not k.instead(s, act))
    )


def gathers(k):
    """Whether nothing goes along a row."""
    return not any(moved_bytes(k, a) for a in k.acts)


def cost(k):
    per_act = sorted({moved_bytes(k, a) for a in k.acts})
    if k.work:
        return f"{k.work} operations."
    if gathers(k):
        return f"Per row: a value of each tensor, {k.flops} operations."
    count = " to ".join(map(str, per_act[:1] + per_act[1:][-1:]))
    operations = (
        f"{k.flops} operation{'s' if k.flops != 1 else ''}{' (act as one)' if k.has_act else ''}"
    )
    return f"Per element: {count} bytes, {operations}."


def rising(k):
    """Scalars of activations that must not be negative where the gradient is by the result."""
    return list(dict.fromkeys(s for a in k.acts if k.by(a) for s in a.rising))


def codes(k, act=None):
    """What it may return but for success, and for what a launch itself gives; act: with this activation."""
    risen = rising(k) if act is None else k.by(act) and act.rising
    found = [
        "INVALID_SIZE",
        *(["INVALID_VALUE"] if k.dropout or risen else []),
        "NULL_POINTER",
        "MISALIGNED",
        "OVERLAP",
    ]
    found += ["WORKSPACE"] if k.has_workspace else []
    return found + (["UNSUPPORTED"] if k.strided and k.form == "axis" else [])


def errors(k):
    why = {
        "INVALID_SIZE": " (an axis of 0 too)" if k.refuses else "",
        "INVALID_VALUE": f" (of {' or '.join(['p'] * k.dropout + rising(k))})",
        "UNSUPPORTED": " (a stride of single elements)",
    }
    return f"Errors: {', '.join(code + why.get(code, '') for code in codes(k))}; CUDA also a launch's own."


def workspace(k):
    name = names.workspace(k.pattern).removeprefix("kf_")
    text = "workspace: kf_[cpu_]{}({})" + (
        ", aligned to 256" + k.workspace_note
        if k.scratch
        else "; C: 0"
        if k.shared_out
        else ": 0, may be NULL"
    )
    whole = text.format(name, ", ".join(k.sizes))
    return whole if len(whole) <= WIDTH + 3 else text.format(name, "sizes")


# ---- the comment -------------------------------------------------------------------------------------------------


def lines(kernel, whole=False):
    """At most 16 lines, for a C comment; 19 where there are ten tensors or more. whole: more, with all of the formulas."""
    k = kernel
    own, by = formulas(k), formulas(k, True) if k.by_result else []
    by = [line for line in by if line not in own] if k.work else by
    text = "; ".join(own) + (f". With {k.result}: {'; '.join(by)}" if by else "")
    found = textwrap.wrap(
        text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    if len(found) > 4 and not whole:
        found = found[:3] + ["  ... (kfgen explain prints all of it)"]
    groups = {}  # inputs, then outputs, that have everything in common
    for s in k.inputs + k.outputs:
        dims, name = (
            ("", f"{s.name} {shape(k, s)}") if k.work else (f"{shape(k, s)} ", s.name)
        )  # tensors of a product have shapes of their own
        groups.setdefault(
            ("in " if s.role == "in" else "out", dims, s.dtype.word, notes(k, s)), []
        ).append(name)
    for (role, dims, word, note), members in groups.items():
        line = f"{role}  {', '.join(members)}: {dims}{word}{'; ' + note if note else ''}"
        found += textwrap.wrap(
            line,
            WIDTH + 3,
            subsequent_indent="       ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    if k.has_workspace:
        found += textwrap.wrap(
            workspace(k),
            WIDTH + 3,
            subsequent_indent="       ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    lie = (
        "as strides say (NULL: dense), aligned (fastest: 16 bytes)"
        if k.strided
        else "dense, aligned to their elements (fastest: to 16 bytes)"
    )
    found.append(f"Tensors: {lie}, {'all memory ' if k.scratch else ''}apart unless said.")
    unread = f" Not read: {', '.join(k.unread_scalars)}." if k.unread_scalars else ""
    found += textwrap.wrap(f"{arithmetic(k)} {cost(k)}{unread}", WIDTH + 3)
    found += textwrap.wrap(errors(k), WIDTH + 3)
    if k.op.source:
        found.append(f"Source: {k.op.source}")
    return [safe(line) for line in found]


def safe(line):
    """Text from a spec may not end the comment it stands in, nor open one, nor continue the line."""
    return line.replace("*/", "* /").replace("/*", "/ *").rstrip("\\ ")


assert set(INFIX) | {"neg", "not"} <= set(PRIMITIVES) and BOOLEAN <= set(INFIX) | {"not"}
