# SPDX-License-Identifier: Apache-2.0
"""Docstrings of kf.ops, generated from an op's entry."""

from kfgen.model.shapes import NONE, ONE, spans, text

from kernel_fusion import _adapted, _arguments, _axes, _caches, _rows
from kernel_fusion._plan import bounds_of
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
    """Describes a tensor's dtype."""
    if t.var in NAMES:
        return f"{NAMES[t.var]}{' or int32' if t.var == 'i64' and t.role == 'in' else ''}"
    first = op.forward.template.name
    if t.var == "acc":
        return f"float32; float64 if {first} is float64"
    if t.var in op.further:
        found = {d[t.var] for d in op.types}
        wider = all(d[t.var] in (d["T"], "f32") for d in op.types)
        return f"{first}'s dtype or float32" if wider else " ".join(NAMES[d] for d in sorted(found))
    return (
        " ".join(NAMES[d] for d in NAMES if d in {d[0] for d in op.dtypes})
        if t.name == first
        else f"{first}'s dtype"
    )


def _shape(op: Op, t: Tensor) -> str:
    """Describes a tensor's shape; "..." stands for any number of dimensions."""
    parts = []
    for extent in t.extents:
        rule = op.rules.sizes.get(extent, ONE) if isinstance(extent, str) else ONE
        if spans(rule):
            parts.append(f"{extent}..." if op.forward.shaped_by else "...")
        elif rule != NONE:
            parts.append(text(extent))
    return f"[{', '.join(parts)}]".replace("..., ...", "...")


def _value(v: Value) -> str:
    """Describes a scalar: bounds and default."""
    default = f"1 / sqrt({v.rsqrt_of})" if v.rsqrt_of else f"{v.default:g}"
    return f"    {v.name}: {bounds_of(v, ', ') or 'any number'}; default {default}"


def _absent(op: Op, t: Tensor) -> str:
    """The value of an absent tensor."""
    for name, of, after in _rows.counted(op):
        if name == t.name:
            return f"the index along the dimension of {of} before its last {after}"
    return t.absent if isinstance(t.absent, str) else f"{t.absent:g}"


def of(op: Op, activation: str, jax: bool = False) -> str:
    """Returns the docstring of a function of kf.ops, or of kf.jax."""
    lines = [f"{op.brief}{f', with act = {activation}' if op.has_act else ''}.", "", "Args:"]
    for t in op.forward.inputs:
        if t.list:
            none = "; may be None" if t.nullable else ""
            lines.append(f"    {t.name}: list of tensors, {_dtype(op, t)}{none}{_next(t)}")
            continue
        absent = "" if t.absent is None else f"; None stands for {_absent(op, t)}"
        in_cache = t.name in _caches.checked(op.forward)
        outside = "; out of range: " * bool(t.below or in_cache)
        outside += "IndexError on the CPU, else " * (in_cache or bool(t.below and not jax))
        outside += _outside(op) * bool(t.below or in_cache)
        shape = f"{'broadcasts to ' * (t.kind in _adapted.SPREAD)}{_shape(op, t)}"
        lines.append(f"    {t.name}: {shape}, {_dtype(op, t)}{absent}{outside}{_next(t)}")
    padding = {name: of for name, of, _ in _rows.padding(op)}
    lines += [
        f"    {v.name}: row of {padding[v.name]} without gradient, or None; -1 is the last"
        if v.name in padding
        else _value(v)
        for v in (*op.forward.integers, *op.forward.scalars, *op.scalars[activation])
    ]
    if op.has_axis:
        several = "" if _axes.has_index(op) else " or tuple of axes"
        all_ = f"{several}; default {op.axis}, None reduces all dimensions"
        lines.append(f"    dim: axis{all_ if _axes.applies(op) else f'; default {op.axis}'}")
    if op.has_groups:
        lines.append("    groups: number of groups, a divisor of the number of channels")
    if _axes.applies(op):
        lines.append("    keepdim: if True, reduced dimensions stay in the result, with size 1")
    if _arguments.widens(op):
        lines.append("    dtype: dtype to which the tensors are converted first, or None")
    if op.forward.lse is not None:
        lines.append("    return_lse: if True, returns (out, lse); not for TensorFlow")
    lines += [] if jax else _accumulated(op)
    if op.dropout:
        lines += [
            "    p: probability that an element is dropped; default 0.5",
            "    training: if False, no element is dropped; default True",
            "    rng: key of JAX, or seed and offset"
            if jax
            else "    rng: seed and offset; None draws them from the default generator",
        ]
    if op.forward.updates:
        return "\n".join([*lines, *_of_updates(op), *_source(op)])
    lines += [] if jax else _out(op)
    results = [op.forward.outputs[i] for i in op.forward.results]
    placed = [t for t in op.forward.outputs if t.place_of]
    results += placed if jax else []
    lines += ["", "Returns:", f"    {', '.join(f'{t.name} {_shape(op, t)}' for t in results)}"]
    lse = [op.forward.outputs[op.forward.lse]] if op.forward.lse is not None else []
    read = {t.name for t in op.backward.inputs} if op.backward else set()
    lines += [
        f"    {t.name} {_shape(op, t)}, {_dtype(op, t)}, with return_lse: the logarithm of the sum "
        f"of exponentials{'' if f'd{t.name}' in read else ', without gradient'}"
        for t in lse
    ]
    lines += [
        f"    {t.name} only if {t.place_of} is given"
        if jax
        else f"    {t.place_of} is updated in place"
        for t in placed
    ]
    lines += [
        "",
        "Raises:",
        "    TypeError: the dtypes have no function.",
        "    ValueError: shapes do not match, or a number is out of its bounds.",
    ]
    return "\n".join([*lines, *_source(op)])


def _outside(op: Op) -> str:
    """The effect of an index out of range."""
    return "NaN, or no row" if op.forward.updates else "NaN"


def _accumulated(op: Op) -> list[str]:
    """Arguments by which results or gradients are added to existing tensors."""
    lines = [
        f"    {name}: factor of the old values of out, which are added to the result; default 0; "
        "NumPy and GPU arrays only"
        for name in op.forward.betas
    ]
    if op.added:
        lines.append(
            f"    grads: {{operand: tensor}} for operands out of {', '.join(op.added)}; PyTorch "
            f"only. The backward "
            "adds the operand's gradient to the tensor instead of passing it to autograd. The "
            "tensor has "
            "the operand's shape, its dtype or float32, and contiguous or strided rows"
        )
    return lines


def _out(op: Op) -> list[str]:
    """The argument that receives the results."""
    several = len(op.forward.results) > 1
    return [
        f"    out: {'{result: array}, which receive' if several else 'array that receives'} the "
        f"result"
        f"{'s' if several else ''}; NumPy and GPU arrays only"
    ]


def _next(t: Tensor) -> str:
    """The effect on an input that is overwritten."""
    return "; overwritten by its next value" if t.role == "inout" else ""


def _of_updates(op: Op) -> list[str]:
    """Rules of an op that overwrites inputs."""
    lists = [t.name for t in op.forward.inputs if t.list]
    equal = f" {', '.join(lists)} have tensors of the same shapes, in the same order." * bool(lists)
    return [
        "",
        f"Returns None.{equal} There is no gradient: call it under torch.no_grad() if an argument",
        "requires one.",
        "",
        "Raises:",
        "    TypeError: the dtypes have no function.",
        "    ValueError: shapes do not match, an overwritten tensor is not contiguous, or tensors "
        "overlap.",
    ]


def _source(op: Op) -> list[str]:
    return ["", f"Source: {op.source}."] if op.source else []
