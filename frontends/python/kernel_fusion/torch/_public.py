# SPDX-License-Identifier: Apache-2.0
"""Functions of kf.ops for PyTorch tensors, which map public arguments to those of the torch ops."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from kernel_fusion import _arguments, _axes, _caches, _counts, _plan, _rows, _table, config
from kernel_fusion._table import Op
from kernel_fusion.torch import _adding, _autocast, _autograd, _order
from kernel_fusion.torch._kernels import DTYPES, argument_error, explain
from kernel_fusion.torch._schema import schema

INDICES = (torch.int64, torch.int32)  # dtypes of indices
# Bypasses Function.apply's Python code (functorch checks, ctx wrapping): a third of the cost of a
# call with a gradient.
FAST: Any = vars(torch._C._FunctionBase).get("apply")


def seed_of(where: str, x: Tensor, rng: Any, training: bool) -> Tensor:
    """Returns seed and offset of a dropout as a tensor on x's device.

    They are drawn from the default generator: manual_seed determines them, torch.compile traces
    the call, and a replayed graph draws again. Without dropout the generator does not advance.
    """
    if rng is None and not training:
        return torch.zeros(2, dtype=torch.int64, device=x.device)
    if rng is None:
        return torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64, device=x.device)
    if isinstance(rng, Tensor):
        return rng
    try:
        return torch.tensor(
            [v - 2**64 if v >= 2**63 else v for v in _arguments.seeds(rng)],
            dtype=torch.int64,
            device=x.device,
        )
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise TypeError(
            f"{where}: rng is {rng!r:.60}, expected None, two whole numbers of 64 bits (seed and "
            f"offset), or a tensor of them"
        ) from None


def dtype_of(where: str, dtype: Any) -> torch.dtype:
    return dtype if isinstance(dtype, torch.dtype) else DTYPES[_arguments.dtype_word(where, dtype)]


def check_number(where: str, name: str, value: Tensor) -> None:
    """Refuses a scalar that is a tensor of several numbers, or whose gradient would be lost."""
    if value.requires_grad:
        raise TypeError(
            f"{where}: {name} requires a gradient, which scalars do not have; expected a number"
        )
    if value.numel() != 1:
        raise TypeError(
            f"{where}: {name} is a tensor of the shape {tuple(value.shape)}, expected a number"
        )


def row_of(where: str, name: str, value: int | None, table: Tensor, dimension: int) -> int | None:
    """A row of a table as a launcher takes it. The plan refuses a table without the dimension."""
    if table.dim() < -dimension:
        return -1 if value is None else value
    return _rows.row(where, name, value, table.shape[dimension])


def check_index(
    where: str, name: str, index: Tensor, table: Tensor, dimension: int, ignore: int | None
) -> None:
    """Refuses indices out of range, as PyTorch does, where their values are at hand. Elsewhere the
    kernel gives NaN. The plan refuses a table without the dimension.
    """
    if table.dim() >= -dimension and is_at_hand(index):
        _rows.check(where, name, index.numpy(), table.shape[dimension], ignore)


def check_offsets(where: str, name: str, offsets: Tensor, of: str, packed: Tensor) -> None:
    """Refuses wrong offsets where their values are at hand. Elsewhere the kernel clamps them."""
    if packed.dim() and is_at_hand(offsets):
        _rows.check_offsets(where, name, offsets.numpy(), of, packed.shape[0])


def check_lists(
    where: str, names: tuple[str, ...], bounds: Tensor, blocks: Tensor, masks: Tensor, key: Tensor
) -> None:
    """Refuses wrong lists of blocks where their values are at hand. Elsewhere the kernel gives NaN
    or clamps.
    """
    if is_at_hand(bounds) and is_at_hand(blocks):
        values = bounds.numpy(), blocks.numpy()
        _rows.check_lists(where, names, values, masks.shape, key.shape)


def values(index: Tensor) -> Any:
    """Returns indices as an array of NumPy, None if their values cannot be read."""
    return index.numpy() if is_at_hand(index) else None


def is_at_hand(index: Tensor) -> bool:
    """True if the values of indices can be read: on the CPU and outside of transforms. The plan
    refuses other dtypes.
    """
    return (
        index.device.type == "cpu"
        and index.dtype in INDICES
        and type(index) is Tensor
        and not torch._C._are_functorch_transforms_active()
        and not torch._C._len_torch_dispatch_stack()
        and torch._C._get_tracing_state() is None
    )


def counted(x: Tensor, after: int) -> Tensor:
    """Index of each row of x in its sequence. after: dimensions of x after the rows."""
    shape = x.shape[: x.dim() - after]
    return torch.arange(shape[-1], device=x.device).expand(shape).contiguous()


def _text(op: Op, activation: str) -> str:
    """Source text of a specialised function, so that calls need no argument inspection."""
    inputs = op.forward.inputs
    tensors, first = ", ".join(t.name for t in inputs), inputs[0].name
    needs = " or ".join(
        f"({t.name} is not None and {t.name}.requires_grad)"
        if t.nullable
        else f"{t.name}.requires_grad"
        for t in inputs
    )
    rest = _rest(op, activation)
    numbers = [v.name for v in (*op.forward.scalars, *op.scalars[activation])]
    numbers += ["p"] if op.dropout else []
    lines = [
        f"def function{_arguments.signature(op, activation)}:",
        "    if out is not None:",
        "        raise TypeError(f'{where}: out is for NumPy arrays; PyTorch calls return a new "
        "tensor')",
        *(
            f"    if {name}:\n        raise TypeError(f'{{where}}: {name} is for NumPy arrays, "
            f"which have out')"
            for name in op.forward.betas
        ),
        *(
            f"    if isinstance({n}, Tensor):\n        check_number(where, '{n}', {n})"
            for n in numbers
        ),
        *(
            f"    {line}"
            for v in op.forward.integers
            for line in _bounds(op.display_name(activation), v, "int")
        ),
        "    try:",
        f"        if any_autocast() and {first}.device.type in devices and "
        f"autocast({first}.device.type):",
        f"            {tensors}, = cast(({tensors},))",
    ]
    if _axes.applies(op):
        lines += [
            "        shape = None",
            f"        if type(dim) is not int or keepdim is not False or not {first}.shape:",
            f"            ({tensors},), dim, shape = folded(({tensors},), dim, keepdim)",
        ]
    for name, of, after in _rows.counted(op):
        lines += [
            f"        if {name} is None and {of}.dim() > {after + 1}:",
            f"            {name} = counted({of}, {after})",
        ]
    if op.forward.lse is not None:
        lines.append("        flag(where, 'return_lse', return_lse)")
    lines += [
        *(
            f"        {name} = rsqrt(where, '{name}', {of}, {at}) if {name} is None else {name}"
            for name, of, at in _arguments.rsqrts(op)
        ),
        *(
            f"        {name} = row_of(where, '{name}', {name}, {of}, {dimension})"
            for name, of, dimension in _rows.padding(op)
        ),
        *(f"        {line}" for line in _order.lines(op)),
        f"        save = grad_on() and ({needs})",
        f"    except {_order.ERRORS if _order.applies(op) else 'AttributeError'} as e:",
        f"        raise argument_error(schema, where, ({tensors},)) or e from None",
        "    traced = compiling()",
    ]
    pairs = [(a.name, b.name) for i, b in enumerate(inputs) for a in inputs[:i]]
    # torch.compile does not accept the same tensor twice.
    lines += ["    if save and traced:"] if pairs else []
    for a, b in pairs:
        lines += [
            f"        if {b} is {a} and {b} is not None:",
            f"            {b} = {b}.view_as({b})",
        ]
    lines += [f"    given = ({tensors}, {rest})"]
    results = _results(op)
    lines += (
        [
            "    if grads is not None:",
            "        found = adding(given, grads)",
            f"        return {results}",
        ]
        if op.added
        else []
    )
    if _decomposes(op, activation):
        lines += [
            f"    if traced and {first}.dtype in floats and decomposes():",
            *(
                f"        {line}"
                for v in (*op.forward.scalars, *op.scalars[activation])
                for line in _bounds(op.display_name(activation), v, "float")
            ),
            "        found = plain_apply(*given) if save else plain(*given)",
            f"        return {results}",
        ]
    for name, of, dimension in _rows.bounded(op.forward):
        ignore = _rows.ignored(op.forward) or None
        lines += [
            f"    if not traced and {name} is not None:",
            f"        check_index(where, '{name}', {name}, {of}, {dimension}, {ignore})",
        ]
    for name, of in _rows.offsets(op.forward):
        lines += [
            "    if not traced:",
            f"        check_offsets(where, '{name}', {name}, '{of}', {of})",
        ]
    if listed := _rows.lists(op.forward):
        lines += [
            "    if not traced:",
            f"        check_lists(where, {listed}, {', '.join(listed)})",
        ]
    if _caches.of(op.forward):
        named = ", ".join(f"{t.name}={t.name}" for t in inputs)
        integers = ", ".join(f"{v.name}={v.name}" for v in op.forward.integers)
        lines += ["    if not traced:", f"        check_caches(dict({named}), dict({integers}))"]
    lines += [
        "    try:",
        "        if traced:",
        "            found = whole(*given) if exporting() else apply(*given) if save else "
        "forward(*given)",
        "        elif tracing() is not None:",
        "            found = whole(*given)",
        "        elif transformed() or forward_mode._current_level >= 0:",
        "            found = guarded(given, save)",
        "        else:",
        "            found = fast_apply(*given) if save else forward_now(*given)",
        "    except (RuntimeError, TypeError) as e:",
        *(
            ["        given = given if order is None else undone(given, order)"]
            if _order.applies(op)
            else []
        ),
        "        raise explain(schema, e, given) from None",
    ]
    for i, t in enumerate(op.forward.outputs):
        lines += (
            [f"    if {t.place_of} is not None:", f"        {t.place_of}.copy_(found[{i}])"]
            if t.place_of
            else []
        )
    return "\n".join([*lines, f"    return {results}", ""])


def _results(op: Op) -> str:
    """Expression of what a function returns, of the op's outputs `found`."""
    one = len(op.forward.outputs) == 1
    found = ["found"] if one else [f"found[{i}]" for i in op.forward.results]
    plain = ", ".join(found)
    if op.forward.lse is not None:
        return f"({plain}, found[{op.forward.lse}]) if return_lse else {plain}"
    if _order.applies(op):
        restored = ", ".join(f"restored({x}, order)" for x in found)
        return f"({plain}) if order is None else ({restored})"
    if not _axes.applies(op):
        return plain
    folded = ", ".join(f"{x}.reshape(shape)" for x in found)
    return f"({plain}) if shape is None else ({folded})"


def folder(op: Op, where: str) -> Callable[..., Any]:
    """Makes a function that makes the axes of a reduction one axis."""

    def folded(tensors: Sequence[Tensor], dim: Any, keepdim: Any) -> tuple[list[Tensor], int, Any]:
        """Returns (tensors, axis, shape of the results)."""
        _axes.check_keepdim(where, keepdim)
        axes = _axes.numbers(where, op, dim)
        shapes = [t.shape for t in tensors]
        _plan.check_flat(where, op.forward.inputs, shapes)
        fold = _axes.fold(where, op.forward.inputs[0].name, shapes[0], axes, keepdim)
        if fold.order is not None:
            tensors = [t.permute(fold.order) for t in tensors]
            for t in tensors:
                if not torch.compiler.is_compiling() and not t.is_contiguous():
                    _counts.copied(op.name)
        return [t.reshape(fold.shape) for t in tensors], fold.axis, fold.result

    return folded


def _rest(op: Op, activation: str) -> str:
    """Arguments of the op after the tensors."""
    scalars = [v.name for v in op.scalars[activation]]
    acts = {f"act_{i}": scalars[i] if i < len(scalars) else "0.0" for i in range(op.act_scalars)}
    words = {
        "activation": str(op.numbers[activation]),
        "rng": f"seed_of(where, {op.forward.inputs[0].name}, rng, training)",
        "dtype": "dtype_of(where, dtype)",
        "save": "save or return_lse" if op.forward.lse is not None else "save",
        "p": "p if training else 0.0",
        **acts,
    }
    return ", ".join(
        words.get(name, name) for _, name in schema(op, False).arguments[len(op.forward.inputs) :]
    )


def _bounds(where: str, value: _table.Value, kind: str) -> list[str]:
    """Lines that check a scalar's bounds, which a formula does not.

    torch.compile may have a symbol for the value: `kind` makes it the number that the message has.
    """
    named = [(s, n) for s, n in ((">=", value.least_of), ("<=", value.most_of)) if n]
    # A comparison of NaN with a symbol is an error of its own.
    numbers = [value.name, *(name for _, name in named)] if named else []
    within = [f"{name} == {name}" for name in numbers] + [
        f"{value.name} {sign} {bound}"
        for sign, bound in ((">=", value.least), ("<=", value.most), *named)
        if bound is not None
    ]
    known = {name: f"{name} = {{float({name})}}" for _, name in named}
    text = _plan.bounds_of(value, " and ", known)
    return (
        [
            f"if not ({' and '.join(within)}):",
            f"    refuse_value({where!r}, '{value.name}', {kind}({value.name}), f'{text}')",
        ]
        if within
        else []
    )


def _decomposes(op: Op, activation: str) -> bool:
    """True if torch.compile may see the formula instead of the op."""
    return op.decomposes and _table.formulas(op, activation) is not None


def decomposes() -> bool:
    """True if torch.compile sees formulas.

    "auto" is "opaque" before PyTorch 2.13, where torch.compile assumes is_exporting()
    (pytorch/pytorch#176347).
    """
    if config.compile_ops == "auto":
        return not torch.compiler.is_exporting()
    return config.compile_ops == "decompose"


def _differentiated(t: Any) -> bool:
    """True if torch.func's grad, or autograd outside of its vmap, records operations
    on a tensor.
    """
    while torch._C._functorch.is_functorch_wrapped_tensor(t):
        if t.requires_grad:
            return True
        t = torch._C._functorch.get_unwrapped(t)
    return bool(t.requires_grad)


def guarded(
    where: str, forward: Any, function: Any, separate: Any = None, saves: bool = False
) -> Callable[[Sequence[Any], bool], Any]:
    """Makes a function that calls an op inside a torch.func transform or forward-mode autograd.

    Without its checks the op's result would be treated as a constant there.

    Args:
        function: the Function outside of transforms.
        separate: the one inside, or None: PyTorch has none below its Autograd key.
        saves: True if the last argument requests values for the gradient.
    """

    def call(given: Sequence[Any], save: bool) -> Any:
        tensors = [t for t in given if isinstance(t, Tensor)]
        if forward_ad._current_level >= 0 and any(
            forward_ad.unpack_dual(t).tangent is not None for t in tensors
        ):
            raise NotImplementedError(f"{where} has no forward-mode derivative")
        if not torch._C._are_functorch_transforms_active():
            return function.apply(*given) if save else forward(*given)
        if torch.is_grad_enabled() and any(map(_differentiated, tensors)):
            if separate is None:
                raise NotImplementedError(
                    f"{where} has no derivative inside transforms of torch.func: call kf.ops"
                )
            return separate.apply(*given[:-1], True) if saves else separate.apply(*given)
        return forward(*given)

    return call


def make(
    op: Op, activation: str, whole: Any, forward: Any, function: Any, eager: Any, separate: Any
) -> Callable[..., Any]:
    """Makes the function of kf.ops for tensors.

    Args:
        whole: the op for exported programs, which has a gradient wherever it is loaded.
        forward, function, eager, separate: see _autograd.make.
    """
    where = op.display_name(activation)
    names: dict[str, Any] = {
        "forward": forward,
        "forward_now": getattr(forward, "_op", forward),
        "apply": function.apply,
        "fast_apply": FAST.__get__(None, eager) if FAST else eager.apply,
        "whole": whole,
        "exporting": torch.compiler.is_exporting,
        "compiling": torch.compiler.is_compiling,
        "tracing": torch._C._get_tracing_state,  # torch.jit.trace cannot save a Function
        "transformed": torch._C._are_functorch_transforms_active,
        "forward_mode": forward_ad,
        "guarded": guarded(where, forward, eager, separate, schema(op, False).saves),
        "check_number": check_number,
        "refuse_value": _plan.refuse_value,
        "row_of": row_of,
        "rsqrt": _arguments.rsqrt,
        "flag": _arguments.flag,
        "check_index": check_index,
        "check_offsets": check_offsets,
        "check_lists": check_lists,
        "check_caches": lambda given, integers: _caches.check_values(
            where, op.forward, given, values, integers
        ),
        "Tensor": Tensor,
        "counted": counted,
        "inputs": op.forward.inputs,
        "schema": schema(op, False),
        "explain": explain,
        "argument_error": argument_error,
        "where": where,
        "seed_of": seed_of,
        "dtype_of": dtype_of,
        "grad_on": torch.is_grad_enabled,
        "any_autocast": torch._C._is_any_autocast_enabled,
        "autocast": torch.is_autocast_enabled,
        "devices": _autocast.DEVICES,
        "cast": lambda tensors: _autocast.cast(op, tensors),
        "inf": math.inf,  # a default
    }
    if _axes.applies(op):
        names["folded"] = folder(op, where)
    if _order.applies(op):
        names |= {
            "arranged": _order.arranger(op),
            "restored": _order.restored,
            "undone": _order.undoer(op),
        }
    if op.added:
        names["adding"] = _adding.make(op, activation, forward)
    if _decomposes(op, activation):
        plain, plain_function = _autograd.decomposed(op, activation)
        names |= {
            "plain": plain,
            "plain_apply": plain_function.apply,
            "decomposes": decomposes,
            "floats": tuple(DTYPES[word] for word in ("f32", "f16", "bf16", "f64")),
        }
    exec(compile(_text(op, activation), f"<{where}>", "exec"), names)
    made: Callable[..., Any] = names["function"]
    made.__qualname__ = where  # appears in Python's own errors about arguments
    return made
