# SPDX-License-Identifier: Apache-2.0
"""Writes a kernel's contract: the comment above it in the generated header, and the rows of the
reference page.
"""

import ast
import functools
import textwrap

from kfgen.language.primitives import BOOLEAN, PRIMITIVES
from kfgen.model import kinds, names
from kfgen.model.dtypes import INT_DTYPES

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


# ---- formulas ------------------------------------------------------------------------------------


def formulas(k, by=False):
    """Returns one line per result in the expression language: the entry's text, or the derived
    gradient. by: the form that reads the activation's result.
    """
    return k.formulas(by)


def of_elements(k, by):
    """Returns the formulas of an elementwise kernel."""
    if not k.bwd:
        return [assigned(name, text) for name, text in (k.op.values_of_rows | k.op.outputs).items()]
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
    """Joins the statements of an expression with semicolons."""
    return "; ".join(_statements(text))


def assigned(name, text):
    """Returns an expression in one line whose last statement, its value, is assigned to `name`."""
    *first, value = _statements(text)
    return "; ".join([*first, f"{name} = {value}"])


def _statements(text):
    return [ast.unparse(statement) for statement in ast.parse(text.strip()).body]


def write(graph, roots, named=None, letter="t"):
    """Returns (lines that define shared subexpressions, one text per root). named: {node: name}.
    letter: prefix of the other names.
    """
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


# ---- operands ------------------------------------------------------------------------------------


def shape(k, stream):
    return "[lengths[i]]" if stream.is_list else f"[{', '.join(k.shape(stream))}]"


def in_place(k, stream):
    """Returns the inputs whose pointer this output may share."""
    if stream.place_of:
        return [stream.place_of]
    fixed = stream.role in ("in", "inout") or stream.is_list
    if fixed or k.family.kind(stream.kind).overlap == kinds.NONE:
        return []
    return [
        s.name
        for s in k.inputs
        if s.kind == stream.kind
        and s.dtype.size == stream.dtype.size
        and s.reads != "never"
        and s.role == "in"
    ]


def nullable(k, stream):
    """Explains why the pointer may be NULL; empty if it may not."""
    if stream.role != "in":
        return "" if stream.required else "skipped if NULL"
    if stream.reads == "never":
        return "not read, may be NULL"
    if stream.absent is not None:
        absent = stream.absent
        return f"NULL stands for {absent if isinstance(absent, str) else format(absent, 'g')}"
    if stream.reads == "result":
        acts = ", ".join(a.name for a in k.acts if k.by(a))
        return f"may be NULL; if given, the gradients of {acts} are computed from it"
    if stream.reads == "act":
        found = [a.name for a in k.acts if not k.reads(stream, a)]
        found += [f"if {k.result} is given and read"] if any(map(k.by, k.acts)) else []
        which = "for activation " if len(found) > 1 or not k.by_result else ""
        return f"may be NULL {which}{', and '.join(found)}" if found else ""
    return ""


def notes(k, stream):
    found = [nullable(k, stream)]
    if stream.role == "inout":
        found.append(k.change(stream))
    if stream.pages:
        found.append(paged(k, stream))
    if stream.role == "in" and (below := k.below(stream)):
        found.append(f"values outside [0, {below}) give {'no gradient' if k.bwd else 'NaN'}")
    if companions := in_place(k, stream):
        found.append(f"may be {' or '.join(companions)}")
    if stream.same_as:
        found.append(f"equals {stream.same_as}, may share its pointer")
    return "; ".join(n for n in found if n)


def paged(k, stream):
    """Describes where the rows of a sequence are in a cache."""
    block = k.shape(stream)[1]
    return f"row r of sequence s is row r % {block} of block {stream.pages}[s][r / {block}]"


def pages(k, stream):
    """Describes how rows are found through a table of block numbers, or returns None."""
    if not stream.pages:
        return None
    blocks, block = k.shape(stream)[:2]
    return {"table": stream.pages, "rows": block, "below": blocks, "outside": "NaN"}


def of_lists(k):
    """Describes the arrays of lists."""
    if not k.lists:
        return ""
    names_ = ", ".join(k.list_names)
    return (
        f" {names_}: host arrays of `count` pointers, read during the call. Tensors of a list "
        "may be empty, and then NULL."
    )


def memory(k):
    """Describes layout, alignment and aliasing of the tensors."""
    layout = "strided by `strides` (NULL: contiguous)" if k.strided else "contiguous"
    them = "Tensors and workspace" if k.scratch else "They"
    return (
        f"Tensors are {layout} and element-aligned (16-byte alignment is faster). "
        f"{them} must not overlap unless noted.{of_lists(k)}"
    )


# ---- arithmetic ----------------------------------------------------------------------------------

LONG = {
    "f32": "float32",
    "f64": "float64",
    "f16": "float16",
    "bf16": "bfloat16",
    "i32": "int32",
    "i64": "int64",
}


def arithmetic(k):
    """Describes the precision of the computation and of the results."""
    if k.copies:
        return "Copies elements bit by bit."
    stored = sorted({s.dtype.word for s in k.written if s.var != "I"})
    if k.op.types.converts:
        if k.dtypes[1] in ("i32", "i64"):
            fractions = (
                "." if k.dtypes[0] in INT_DTYPES else "; fractions are truncated; NaN becomes 0."
            )
            return f"Values out of range saturate{fractions}"
        return f"Rounds at most once, directly from {k.dtypes[0]}."
    if k.dtype.compute in INT_DTYPES:
        return "Integer arithmetic wraps."
    text = f"Computes in {LONG[k.dtype.compute]}{k.order_note}"
    if stored != [k.dtype.compute]:
        text += f"; rounds results once, to {' or '.join(stored)}"
    text += "."
    if k.rounded:
        text += " Products may round their factors to TF32 (11 bits); tensors are float32."
    if k.added:
        acc = k.dtype.acc.word
        text += f" Adds {LONG[acc]} partial sums in a fixed order"
        text += ", in float64." if acc != "f64" else "."
    return text


def moved_bytes(k, act):
    """Returns the bytes moved per element of the result: each tensor of its shape counts once. The
    backward reads the activation's result if it can.
    """
    along = [s for s in k.inputs + k.outputs if not k.is_small(s) and s not in k.gathered_inputs]
    return sum(
        s.dtype.size * k.per_element(s) * s.passes
        for s in along
        if s.role != "in" or not k.bwd or (not k.unread(s, act) and not k.instead(s, act))
    )


def gathers(k):
    """True if the kernel reads and writes single elements of each row only."""
    return not any(moved_bytes(k, a) for a in k.acts)


def cost(k):
    per_act = sorted({moved_bytes(k, a) for a in k.acts})
    if k.work:
        return f"{k.work} operations."
    if gathers(k):
        return f"Per row: one value of each tensor, {k.flops} operations."
    count = " to ".join(map(str, per_act[:1] + per_act[1:][-1:]))
    operations = (
        f"{k.flops} operation{'s' if k.flops != 1 else ''}{' (act is one)' if k.has_act else ''}"
    )
    return f"Per element: {count} bytes, {operations}."


def rising(k):
    """Returns the activations' scalars that a gradient by the result requires to be >= 0."""
    return list(dict.fromkeys(s for a in k.acts if k.by(a) for s in a.rising))


def bounded(k, act=None):
    """Returns the names of the scalars with bounds. act: as for codes."""
    acts = k.acts if act is None else [act]
    info = {s: k.op.scalar_info[s] for s in k.bounded}
    every = info | {n: s for a in acts for n, s in a.scalar_info.items()}
    return [n for n, s in every.items() if s.least is not None or s.most is not None]


def codes(k, act=None):
    """Returns the error codes of the kernel's checks. act: with this activation, None: with any."""
    risen = rising(k) if act is None else k.by(act) and act.rising
    found = [
        "INVALID_SIZE",
        *(["INVALID_VALUE"] if k.dropout or risen or bounded(k, act) else []),
        "NULL_POINTER",
        "MISALIGNED",
        "OVERLAP",
    ]
    found += ["WORKSPACE"] if k.has_workspace else []
    return found + (["UNSUPPORTED"] if k.strided and k.form == "axis" else [])


def errors(k):
    why = {
        "INVALID_SIZE": " (also if the axis is empty)" if k.refuses else "",
        "INVALID_VALUE": f" ({' or '.join(['p'] * k.dropout + bounded(k) + rising(k))})",
        "UNSUPPORTED": " (strides between adjacent elements)",
    }
    found = ", ".join(code + why.get(code, "") for code in codes(k))
    return f"Errors: {found}; in CUDA also launch errors."


def workspace(k):
    name = names.workspace(k.pattern).removeprefix("kf_")
    text = "workspace: kf_[cpu_]{}({}) " + (
        "bytes, 256-byte aligned" + k.workspace_note
        if k.scratch
        else "bytes; 0 in C"
        if k.shared_out
        else "= 0 bytes, may be NULL"
    )
    whole = text.format(name, ", ".join(k.size_names))
    return whole if len(whole) <= WIDTH + 3 else text.format(name, "sizes")


# ---- the comment ---------------------------------------------------------------------------------


def lines(kernel, whole=False):
    """Returns the lines of the C comment: at most 16, or 19 with ten tensors or more; of lists at
    most 12 more than tensors, or 14 with a workspace. whole: with all formulas, in any number of
    lines.
    """
    k = kernel
    found = _formula_lines(k, whole)
    groups = {}  # inputs, then outputs, of equal shape, dtype and notes
    for s in k.inputs + k.outputs:
        named, dims = f"{s.name}[i]" if s.is_list else s.name, shape(k, s)
        dims, name = ("", f"{named} {dims}") if k.shape_per_name else (f"{dims} ", named)
        role = {"in": "in ", "inout": "i/o"}.get(s.role, "out")
        groups.setdefault((role, dims, s.dtype.word, notes(k, s)), []).append(name)
    for (role, dims, word, note), members in groups.items():
        line = f"{role}  {', '.join(members)}: {dims}{word}{'; ' + note if note else ''}"
        found += _wrapped(line, WIDTH + 3, " " * 7)
    if k.struct:
        used = (name for name in k.struct.names if name in (*k.sizes, *k.options))
        line = f"in  shape: {k.struct.ctype} with {', '.join(used)}"
        found += _wrapped(line, WIDTH + 3, " " * 7)
    if k.has_workspace:
        found += _wrapped(workspace(k), WIDTH + 3, " " * 7)
    unread = f" Ignores {', '.join(k.unread_scalars)}." if k.unread_scalars else ""
    found += textwrap.wrap(f"{memory(k)} {arithmetic(k)} {cost(k)}{unread}", WIDTH + 3)
    found += textwrap.wrap(errors(k), WIDTH + 3)
    if k.op.source:
        found.append(f"Source: {k.op.source}")
    return [safe(line) for line in found]


def _formula_lines(k, whole):
    own, by = formulas(k), formulas(k, True) if k.by_result else []
    by = [line for line in by if line not in own] if k.work else by
    found = _wrapped(
        "; ".join(own) + (f". With {k.result}: {'; '.join(by)}" if by else ""), WIDTH, "  "
    )
    if len(found) > 4 and not whole:
        return found[:3] + ["  ... (kfgen explain prints the rest)"]
    return found


def _wrapped(text, width, indent):
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def safe(line):
    """Escapes what would end the C comment, open another one or continue the line."""
    return line.replace("*/", "* /").replace("/*", "/ *").rstrip("\\ ")


assert set(INFIX) | {"neg", "not"} <= set(PRIMITIVES) and BOOLEAN <= set(INFIX) | {"not"}
