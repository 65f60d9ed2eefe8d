# SPDX-License-Identifier: Apache-2.0
"""Reference pages, from the same model as the headers: one per family, activations, a matrix of
functions, an overview, and the attributes that templates read.
"""

import pathlib
import re
import textwrap

from kfgen import families, paths
from kfgen.model import contract, names
from kfgen.model.types import ACC
from kfgen.render import docs_matrix, docs_nn, docs_runtime, interface, render
from kfgen.render.environment import environment

# ---- an op ------------------------------------------------------------------------------------


def type_words(kernels):
    """Returns {tensor: type word of the page}.

    Type variables are dtypes in the function's name, acc is the dtype of accumulation. Any other
    word is a dtype that all kernels share.

    Args:
        kernels: an op's kernels in one direction, one per function name.
    """
    columns = {v: [k.dtype_of(v).word for k in kernels] for v in (*kernels[0].types, ACC)}
    found = {}
    for i, s in enumerate(kernels[0].inputs + kernels[0].outputs):
        own = [(k.inputs + k.outputs)[i].dtype.word for k in kernels]
        found[s.name] = next((word for word, column in columns.items() if own == column), own[0])
    return found


def named(k):
    """A function's name on the page, for both backends and all dtypes."""
    name = names.function(k.op.pattern, "{act}", list(k.types), k.bwd, variant=k.variant)
    return name.replace("kf_", "kf_[cpu_]", 1)


def signature(k, types):
    """Signature of an op in one direction, for all dtypes and activations."""
    launcher = next((a for a in k.launchers if not a.act.scalars and not a.state), k.launchers[0])
    arguments = []
    for a in launcher.arguments:
        varies = types.get(a.name) in (*k.types, ACC)
        const = "const " if a.ctype.startswith("const") else ""
        of_list = "const *" if a.ctype.endswith("*const *") else ""
        arguments.append((f"{const}{types[a.name]} *{of_list}" if varies else a.ctype) + a.name)
    return f"kf_result_t {named(k)}({', '.join(arguments)}[, cudaStream_t stream]);"


def workspace(k):
    return f"size_t {names.workspace(named(k))}({k.size_parameters});"


def use(k, stream):
    roles = {"in": "in", "inout": "in and out", "out": "out", "sum": "out, summed"}
    role = roles[stream.role] + (", list" if stream.is_list else "")
    return "; ".join(x for x in (role, contract.notes(k, stream)) if x)


def tensors(kernels, types):
    """Returns rows of [name, shape, dtype, use in the forward, use in the backward]."""
    found = {}
    for k in kernels:
        for s in k.inputs + k.outputs:
            row = found.setdefault(
                (s.name, contract.shape(k, s), types[k.bwd][s.name]), {False: "", True: ""}
            )
            row[k.bwd] = use(k, s)
    return [[*key, uses[False], uses[True]] for key, uses in found.items()]


def formulas(k):
    """Formula lines. A gradient that can use the activation's result has both forms."""
    found = contract.formulas(k)
    return (
        [*found, f"with {k.result}:", *(f"    {line}" for line in contract.formulas(k, True))]
        if k.by_result
        else found
    )


def facts(k):
    """Counts of operations and bytes, order of computation and errors of one direction."""
    plural, act = "s" if k.flops != 1 else "", " and the activation" if k.has_act else ""
    operations = f"{k.flops} operation{plural}{act}"
    if contract.gathers(k):
        text = f"{operations} and a value of each tensor a row"
    else:
        moved = sorted({contract.moved_bytes(k, a) for a in k.acts})
        span = " to ".join(map(str, dict.fromkeys((moved[0], moved[-1]))))
        text = f"{operations} and {span} bytes an element in {k.words}"
    unread = f". Not read: {', '.join(k.unread_scalars)}" if k.unread_scalars else ""
    order = f"; computed {k.order_note.lstrip(', ')}" if k.order_note else ""
    return f"{text}{order}{unread}. {contract.errors(k)}"


def entry(op, kernels):
    """Values of an op for the template, from its kernels of the first dtypes."""
    first = [
        next(k for k in kernels if k.bwd is bwd) for bwd in dict.fromkeys(k.bwd for k in kernels)
    ]
    types = {k.bwd: type_words([other for other in kernels if other.bwd is k.bwd]) for k in first}
    return {
        "op": op,
        "stem": names.stem(op.pattern),
        "brief": op.brief,
        "cuda": any("cuda" in k.backends for k in kernels),
        "dtypes": list(dict.fromkeys(k.words for k in kernels)),
        "activations": len(kernels[0].acts) if "{act}" in op.pattern else 0,
        "signatures": [
            f"typedef struct {{ int64_t {', '.join(k.stride_fields)}; }} {k.stride_struct};"
            for k in first[:1]
            if k.strided
        ]
        + [
            line
            for k in first
            for line in [signature(k, types[k.bwd]), *([workspace(k)] if k.has_workspace else [])]
        ],
        "tensors": tensors(first, types),
        "formulas": [line for k in first for line in formulas(k)],
        "facts": [("Backward" if k.bwd else "Forward", facts(k)) for k in first],
        "backward": len(first) > 1 or first[0].bwd,
    }


# ---- all pages --------------------------------------------------------------------------------


def result_codes():
    """Returns (number, name, text) of each status in core/result.h."""
    text = (paths.INCLUDE / "kf/core/result.h").read_text()
    described = dict(re.findall(r'case (KF_\w+):\s*return "([^"]+)"', text))
    return [
        (int(n), name, described[name])
        for name, n in re.findall(r"^\s+(KF_\w+) = (\d+)", text, re.M)
    ]


def edges(found):
    return ", ".join(f"{x} → {y}" for x, y in found.items())


def spaced(page):
    """Puts one blank line between blocks of different kinds.

    Jinja's line statements drop the blank lines of the template.
    """
    found, fenced, before = [], False, ""
    for line in page.strip().split("\n"):
        kind = (
            ""
            if not line
            else next((k for k in ("#", "|", "- ", "```") if line.startswith(k)), "text")
        )
        kind = "- " if line.startswith("  ") and before == "- " else kind
        if not fenced and kind and found[-1:] != [""] and found and (kind != before or kind == "#"):
            found.append("")
        if fenced or line or found[-1:] != [""]:
            found.append(line)
        fenced ^= line.startswith("```")
        before = kind
    return "\n".join(found) + "\n"


def pages(selection):
    """Returns {file name: text}."""
    env = environment()
    env.filters["cell"] = lambda text: text.replace("|", "\\|")
    env.filters["stem"] = names.stem
    env.filters["coded"] = docs_nn.coded
    env.filters["dedent"] = textwrap.dedent
    env.filters["wrap"] = lambda text: textwrap.fill(
        text, 100, break_long_words=False, break_on_hyphens=False
    )
    titles = {family.name: family.title for family in families.FAMILIES.values()}
    common = {"version": paths.version(), "titles": titles}
    of = {family.name: [] for family in families.FAMILIES.values()}
    for op in selection.ops:
        if kernels := selection.kernels(op):
            of[op.family].append(entry(op, kernels))
    of = {family: ops for family, ops in of.items() if ops}
    count, on_cuda = (
        sum(len(k.launchers) for k in selection.all_kernels() if word in k.backends)
        for word in ("c", "cuda")
    )
    acts = [
        {
            "a": a,
            "edges": edges(a.edges),
            "dedges": edges(a.dedges),
            "expr": contract.one_line(a.expr),
            "dexpr": a.dexpr and contract.one_line(a.dexpr),
        }
        for a in selection.activations
    ]
    texts = {
        f"{family}.md": env.get_template("docs/family.md.j2").render(
            family=family, ops=ops, shape=families.FAMILIES[family].shape, **common
        )
        for family, ops in of.items()
    }
    texts["activations.md"] = env.get_template("docs/activations.md.j2").render(acts=acts, **common)
    texts["matrix.md"] = env.get_template("docs/matrix.md.j2").render(
        **docs_matrix.values(selection), **common
    )
    texts["nn.md"] = env.get_template("docs/nn.md.j2").render(**docs_nn.values(selection), **common)
    texts["runtime.md"] = env.get_template("docs/runtime.md.j2").render(
        **docs_runtime.values(), **common
    )
    texts["README.md"] = env.get_template("docs/index.md.j2").render(
        of=of, count=count, on_cuda=on_cuda, codes=result_codes(), **common
    )
    texts["family_interface.md"] = interface.page()
    return {name: spaced(text) for name, text in texts.items()}


def write(selection, out):
    """Writes the pages into a folder and returns their paths."""
    found = pages(selection)
    for name, text in found.items():
        render.write(pathlib.Path(out) / name, text)
    return [pathlib.Path(out) / name for name in sorted(found)]
