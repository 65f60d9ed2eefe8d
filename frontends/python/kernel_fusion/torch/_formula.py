# SPDX-License-Identifier: Apache-2.0
"""Both directions of an op in PyTorch functions, built from the manifest's statements.

They take the arguments of the torch.library ops. 2-byte values are computed in float32 and rounded
once, as the kernels do.
"""

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kernel_fusion._sizes import Layout
from kernel_fusion._table import Call, Op, Tensor, formulas
from kernel_fusion.torch._schema import schema

SPREAD = "torch.broadcast_to("


def _layout(op: Op, call: Call) -> list[str]:
    """Lines that compute the layout and the sizes."""
    shapes = "".join(
        f"{t.name}.shape if {t.name} is not None else None, " if t.nullable else f"{t.name}.shape, "
        for t in call.shaping
    )
    read = [v.name for v in call.integers] if call.reads_integers else []
    numbers = "".join(f"('{name}', {name}), " for name in [*op.rules.arguments.values(), *read])
    axis = "dim" if op.has_axis else "-1"
    last = "last" if op.channels_last else "False"
    return [
        f"layout_ = lay_out_(({shapes}), {axis}, ({numbers}), {last})",
        f"{', '.join(op.rules.sizes)}, = layout_.sizes",
        *(f"{name} = 0.0" for name in call.betas),
    ]


def _lay_out(op: Op, call: Call) -> Callable[..., Layout]:
    """Makes a function that computes the layout of a call, cached for shapes of numbers."""

    def find(shapes: Any, axis: int, numbers: Any, last: bool) -> Layout:
        rules = op.channels_last if last and op.channels_last else op.rules
        return Layout(rules, call.shaping, shapes, axis, dict(numbers))

    cached = functools.lru_cache(256)(find)

    def lay_out(shapes: Any, axis: int, numbers: Any, last: bool) -> Layout:
        if torch.compiler.is_compiling():
            return find(shapes, axis, numbers, last)
        try:
            return cached(shapes, axis, numbers, last)
        except TypeError:  # a symbol has no hash
            return find(shapes, axis, numbers, last)

    return lay_out


def _dtype(t: Tensor, template: Tensor) -> str:
    """Expression of a tensor's dtype."""
    return (
        f"{template.name}.dtype if {t.name} is None else {t.name}.dtype"
        if t.nullable or t.unread
        else f"{t.name}.dtype"
    )


def _given(op: Op, t: Tensor, template: Tensor, flat: bool, computed: bool) -> str:
    """Line that brings a tensor into its manifest shape.

    Args:
        computed: True if the formula computes with it; False if it is only passed on.
    """
    shape = f"layout_.flat(tensors_['{t.name}'])"
    text = t.name if flat else f"{t.name}.reshape({shape})"
    if t.nullable and t.absent is not None:
        full = f"{template.name}.new_full({shape}, {t.absent})"
        text = f"{full} if {t.name} is None else {text}"
    return (
        f"{t.name} = wide({text})"
        if t.var in (*op.variables, "acc") and computed
        else f"{t.name} = {text}"
    )


def _checks(t: Tensor, template: Tensor, flat: bool) -> list[str]:
    """Lines that check a tensor's shape and dtype, where PyTorch would broadcast or promote."""
    shape = f"tuple({template.name}.shape)" if flat else f"layout_.of(tensors_['{t.name}'])"
    wanted = {
        "T": "dtype_T",
        "acc": "torch.float64 if dtype_T == torch.float64 else torch.float32",
    }.get(t.var)
    there = f"{t.name} is not None and " if t.nullable else ""
    beside = f"beside {template.name} of "
    lines = [
        f"shape_ = {shape}",
        f"if {there}tuple({t.name}.shape) != shape_:",
        f"    raise ValueError(f'{{where}}: {t.name} has the shape {{tuple({t.name}.shape)}}, "
        f"expected {{shape_}} {beside}the shape "
        f"{{tuple({template.name}.shape)}}')",
    ]
    if wanted:
        lines += [
            f"if {there}{t.name}.dtype != ({wanted}):",
            f"    raise TypeError(f'{{where}}: {t.name} has the dtype {{{t.name}.dtype}}, "
            f"expected {{{wanted}}} {beside}{{dtype_T}}')",
        ]
    return lines


def _text(op: Op, activation: str, backward: bool, statements: Sequence[str]) -> str:
    """Source text of one direction."""
    call, template, flat = op.direction(backward), op.direction(backward).template, op.is_flat
    read = set().union(*(compile(line, "", "exec").co_names for line in statements))
    dtypes = {"T": f"{template.name}.dtype"} | {
        t.name: _dtype(t, template) for t in call.inputs if t.var in op.further
    }
    lines = [f"dtype_{name} = {text}" for name, text in dtypes.items()] + (
        [] if flat else _layout(op, call)
    )
    lines += [f"{v.name} = act_{i}" for i, v in enumerate(op.scalars[activation])] + [
        "T = torch.float32 if dtype_T.itemsize == 2 else dtype_T"
    ]
    # The template comes last: others are made from it.
    given = sorted((t for t in call.inputs if t.name in read), key=lambda t: t is template)
    if not backward:
        lines += [line for t in given if t is not template for line in _checks(t, template, flat)]
    inner = ""
    # An empty reduction has no elements whose gradient would be divided by their number.
    if backward and op.reduces:
        statements = [
            re.sub(rf"/ ({'|'.join(op.rules.sizes)})\b", r"/ torch.sym_max(\1, 1)", line)
            for line in statements
        ]
    # Rounding comes first, so that the result stays a view.
    if backward and spreads(op, activation):
        name, _, text = statements[-1].partition(f" = {SPREAD}")
        inner, _, shape = text.rpartition(", (")
        statements = [*statements[:-1], f"{name} = {SPREAD}({inner}).to(dtype_T), ({shape}"]
    lines += [*(_given(op, t, template, flat, t.name != inner) for t in given), *statements]
    results = []
    for t in call.outputs:
        text = t.name if flat else f"{t.name}.reshape(layout_.of(tensors_['{t.name}']))"
        # An operand's gradient has the operand's dtype; results have the first tensor's.
        of = t.of if t.of in dtypes and t.var in op.further else "T"
        results.append(f"rounded({text}, dtype_{of})" if t.var in op.variables else text)
    names = ", ".join(name for _, name in schema(op, backward).arguments)
    return "\n    ".join([f"def function({names}):", *lines, f"return {', '.join(results)}"]) + "\n"


def spreads(op: Op, activation: str) -> bool:
    """True if a gradient broadcasts the result's gradient along the axis: it is then a view."""
    found = (
        formulas(op, activation)
        if op.reduces and op.backward and len(op.backward.outputs) == 1
        else None
    )
    return found is not None and f" = {SPREAD}" in found[1][-1]


def wide(t: torch.Tensor) -> torch.Tensor:
    """Converts 2-byte floats to float32."""
    return t.to(torch.float32) if t.dtype.itemsize == 2 else t


def rounded(t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Converts to dtype without a no-op t.to(dtype).

    If a Function returns a result twice, torch.compile of PyTorch 2.11 loses the gradient
    (pytorch/pytorch#180642).
    """
    return t if t.dtype == dtype else t.to(dtype)


@functools.cache
def make(
    op: Op, activation: str
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any] | None]:
    """Returns (forward, backward, backward by the result or None)."""
    found = formulas(op, activation)
    assert found is not None
    made = []
    for backward, statements in enumerate(lines for lines in found if lines):
        call = op.direction(bool(backward))
        names: dict[str, Any] = {
            "torch": torch,
            "wide": wide,
            "rounded": rounded,
            "where": op.display_name(activation),
            "lay_out_": _lay_out(op, call),
            "tensors_": {t.name: t for t in (*call.inputs, *call.outputs)},
        }
        text = _text(op, activation, bool(backward), statements)
        exec(compile(text, f"<{op.display_name(activation)} in PyTorch>", "exec"), names)
        made.append(names["function"])
    return made[0], made[1], made[2] if len(made) > 2 else None
