# SPDX-License-Identifier: Apache-2.0
"""What help() says of an op: the formula, every argument's shape and dtype, errors, source; of its entry alone."""

from kernel_fusion._table import Op, Tensor, Value

NAMES = {
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f64": "float64",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8 or bool",
}


def _dtype(op: Op, t: Tensor) -> str:
    if t.var in NAMES:
        return NAMES[t.var]
    first = op.forward.template.name
    if t.var == "acc":
        return f"float32, float64 beside {first} of that"
    if t.var == "U":
        return "the dtype asked for" if op.second == "results" else f"{first}'s dtype, or float32"
    return (
        " ".join(NAMES[d] for d in NAMES if d in {d[0] for d in op.dtypes})
        if t.name == first
        else f"{first}'s"
    )


def _shape(op: Op, t: Tensor) -> str:
    words = {
        "all": "any",
        "before": "…",
        "after": "…",
        "all but three": "…",
        "groups": "groups",
        "one": "",
    }
    parts = []
    for extent in t.shape:
        factor, _, size = extent.rpartition(" * ")
        what = op.parts[size]
        if op.forward.shaped_by:
            parts.append(size if isinstance(what, int) else f"{size}…")
            continue
        parts.append(words.get(str(what), f"{factor}{' * ' if factor else ''}{size}"))
    return f"[{', '.join(p for p in parts if p)}]"


def _value(v: Value) -> str:
    bounds = [
        f"at least {v.least:g}" if v.least is not None else "",
        f"at most {v.most:g}" if v.most is not None else "",
    ]
    return (
        f"    {v.name}: {', '.join(b for b in bounds if b) or 'any number'}; default {v.default:g}"
    )


def of(op: Op, activation: str) -> str:
    lines = [f"{op.brief}{f', with act = {activation}' if op.has_act else ''}.", ""]
    for t in op.forward.inputs:
        absent = (
            f"; None stands for {t.absent if isinstance(t.absent, str) else f'{t.absent:g}'}"
            if t.absent is not None
            else ""
        )
        lines.append(f"    {t.name}: {_shape(op, t)}, {_dtype(op, t)}{absent}")
    lines += [
        _value(v) for v in (*op.forward.integers, *op.forward.scalars, *op.scalars[activation])
    ]
    if op.has_axis:
        lines.append(
            f"    dim: the axis; default {op.axis}{', None: all dimensions' if op.family == 'reduction' else ''}"
        )
    if op.has_groups:
        lines.append("    groups: how many, a divisor of the channels")
    lines += [
        f"    {name}: how much of what is in out is added to it; default 0. NumPy arrays alone"
        for name in op.forward.betas
    ]
    if op.added:
        lines.append(
            f"    grads: of PyTorch: {{operand: tensor}}, of {', '.join(op.added)}: their gradients are added to these tensors, "
            "whose rows may lie apart, of the operand's dtype or float32; they then have no gradient of autograd's"
        )
    if op.dropout:
        lines += [
            "    p: the probability that an element is dropped; training: False drops nothing",
            "    rng: seed and offset; None draws them from the default generator",
        ]
    results = [op.forward.outputs[i] for i in op.forward.results]
    lines += ["", f"Returns {', '.join(f'{t.name} {_shape(op, t)}' for t in results)}."]
    lines += [f"{t.place_of} gets its next value." for t in op.forward.outputs if t.place_of]
    lines.append(
        "TypeError: a dtype that there is no function for. ValueError: shapes that do not go together, or a number out of its bounds."
    )
    return "\n".join([*lines, *([f"Source: {op.source}."] if op.source else [])])
