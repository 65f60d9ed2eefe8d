# SPDX-License-Identifier: Apache-2.0
"""kf.fuse and kf.fuse_row: make an op from a formula, with the generator of kf's own ops.

The gradient is derived from the formula.
"""

import hashlib
import json
import re
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from kernel_fusion import _arguments, _compiled, _dispatch, _first_call, _table

DTYPES = {word: long for long, word in _arguments.LONG.items()}
SHOWN = 60  # characters of a formula in messages
_made: dict[str, "Fused"] = {}
# Two threads that make the same op would register it with PyTorch twice.
_lock = threading.Lock()


class Fused:
    """An op made by kf.fuse or kf.fuse_row, callable with NumPy arrays and PyTorch tensors.

    Its arguments are the operands in the order in which they were named.
    """

    def __init__(self, entry: dict[str, Any], label: str):
        from kfgen.interfaces import frontend, fused, manifest
        from kfgen.language import expr
        from kfgen.model import entries

        name = (
            f"fused_{hashlib.sha256(json.dumps(entry, sort_keys=False).encode()).hexdigest()[:12]}"
        )
        try:
            chosen = fused.selection(name, entry)
            made = manifest.build(chosen)
            found, formulas = frontend.table(made)["ops"][0], frontend.formulas(made).get(name, {})
        except (entries.SpecError, expr.ExprError) as e:
            raise ValueError(f"kf.{label}: {_describe(e)}") from None
        self._own = _compiled.Own(name, entry, label)
        self._op = _table.entry(found, _table.IDENTITY, label, self._own, formulas)
        self._own.set_op(self._op)
        if "torch" in sys.modules:
            # torch.compile cannot register an op while it traces, so it is registered here.
            _dispatch.look_for_torch()
        self._function = _dispatch.make(self._op, "none")
        self.__name__ = self.__qualname__ = name
        self.__doc__ = self._function.__doc__
        self.__signature__ = _arguments.signature(self._op, "none")

    @property
    def op(self) -> _table.Op:
        return self._op

    @property
    def function(self) -> Callable[..., Any]:
        return self._function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<kf.{self._op.label}>"

    def __deepcopy__(self, memo: Any) -> "Fused":
        """Returns self: copies of a module share the function."""
        return self

    def __reduce__(self) -> Any:
        return _of_entry, (self._own.entry, self._own.label)

    def _dtypes(self, dtype: Any) -> tuple[str, ...]:
        word = _arguments.dtype_word(f"kf.{self._op.label}", dtype)
        if (word,) not in self._op.dtypes:
            known = ", ".join(long for word, long in DTYPES.items() if (word,) in self._op.dtypes)
            raise TypeError(f"kf.{self._op.label}: dtype is {dtype}, expected one of {known}")
        return (word,)

    def _unit(self, dtype: Any) -> _first_call.Unit:
        return _first_call.Unit("none", self._dtypes(dtype))

    def source(self, dtype: Any = "float32", *, backward: bool = False, target: str = "c") -> str:
        """The kernel as one text that needs no headers of kf: C, or target="cuda"."""
        from kfgen.interfaces import fused
        from kfgen.model import names
        from kfgen.render import source

        if target not in ("c", "cuda"):
            raise ValueError(f"kf.{self._op.label}: target is {target!r}, expected 'c' or 'cuda'")
        if backward and self._op.backward is None:
            raise ValueError(f"kf.{self._op.label} has no gradient")
        dtypes = self._dtypes(dtype)
        wanted = names.function(self._op.pattern, "none", dtypes, backward, cpu=target == "c")
        return str(
            source.source(fused.selection(self._own.op_name, self._own.entry, list(dtypes)), wanted)
        )

    def explain(self, dtype: Any = "float32") -> str:
        """Describes the op: formulas of results and gradients, bytes and operations, compiled
        libraries.

        Args:
            dtype: dtype of the elements, in any framework's spelling

        Returns:
            The description, one fact per line.
        """
        made = self._own.manifest(self._unit(dtype))
        lines = [f"kf.{self._op.label}, torch.ops.kf.{self._op.name}"]
        for f in (f for f in made["functions"] if not f["state"]):
            lines += [
                "",
                f"{'backward' if f['bwd'] else 'forward'}: {f['cpu_name']}",
                *(f"    {line}" for line in f["formula"]),
                f"    {f['cost']['bytes']} bytes, {f['cost']['flops']} operations",
            ]
        compiled = {
            **self._own.state(),
            **{f"{d} on a GPU": what for d, what in self._own.on_gpu.state().items()},
        }
        lines += (
            ["", *(f"{d}: {what}" for d, what in compiled.items())]
            if compiled
            else ["", "nothing is compiled yet"]
        )
        return "\n".join(lines)


def _describe(error: Any) -> str:
    """Describes an entry's error without its position in a file, since there is no file."""
    if not hasattr(error, "problem"):
        return str(error)
    what = "the formula" if error.field == "expr" else error.field
    fix = re.sub(r'^leave out family = "\w+"$', "use kf.fuse", error.fix)  # a field of spec files
    return f"{what} {error.problem}; {fix}"


def _cut(text: str) -> str:
    """Cuts a formula in messages, so that what follows is seen."""
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def _fields(
    what: str, text: Any, named: Mapping[str, Any], more: dict[str, Any]
) -> tuple[dict[str, Any], str]:
    """Returns (fields of the op's entry, name of the op in messages)."""
    if not isinstance(text, (str, Mapping)) or not all(
        isinstance(t, str) for t in (text.values() if isinstance(text, Mapping) else ())
    ):
        raise TypeError(
            f"kf.{what}: the formula is {type(text).__name__}, expected an expression in quotes, "
            f"or {{name: expression}}"
        )
    label = f"{what}({_cut(repr(dict(text) if isinstance(text, Mapping) else text))})"
    operands: dict[str, Any] = {}
    scalars: dict[str, Any] = {}
    for name, value in named.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            scalars[name] = {"value": float(value)}
        elif isinstance(value, Mapping) and "kind" not in value:
            scalars[name] = {"value": value.get("default"), **value}
        elif isinstance(value, (str, Mapping)):
            operands[name] = value if isinstance(value, str) else dict(value)
        else:
            raise TypeError(
                f"kf.{label}: {name} is {type(value).__name__}, expected a kind of operand such "
                f"as 'elem', or a number, the default of a "
                "scalar"
            )
    outputs = {"expr": text} if isinstance(text, str) else {"outputs": dict(text)}
    dtypes = [o.get("dtype") for o in operands.values() if isinstance(o, dict)]
    types = {"types": "weights"} if "U" in dtypes else {}
    scalars_ = {"scalars": scalars} if scalars else {}
    return {
        "brief": "an op of the program's own",
        "operands": operands,
        **scalars_,
        **outputs,
        **types,
        **more,
    }, label


def _fused(what: str, text: Any, named: Mapping[str, Any], more: dict[str, Any]) -> Fused:
    return _of_entry(*_fields(what, text, named, more))


def _of_entry(entry: dict[str, Any], label: str) -> Fused:
    try:
        key = json.dumps(entry)
    except (TypeError, ValueError) as e:
        raise TypeError(f"kf.{label}: {e}") from None
    with _lock:
        if key not in _made:
            _made[key] = Fused(entry, label)
        return _made[key]


def labelled(label: str, expr: str, operands: Mapping[str, Any]) -> Fused:
    """Makes an elementwise op for a function of kf.ops, whose name messages have."""
    brief = {"brief": f"kf.ops.{label}"}  # apart from the same formula of a program
    return _of_entry(_fields("fuse", expr, operands, brief)[0], label)


def fuse(expr: str | Mapping[str, str], /, **operands: Any) -> Fused:
    """Makes an elementwise op from its formula; the gradient is derived.

        f = kf.fuse("gelu(x + bias) * gate", x="elem", bias="row", gate="elem")
        y = f(x, bias, gate)

    Args:
        expr: a formula in kf's expression language, in which activations are functions such as
            silu(x); or {name: formula} for several results
        **operands: for each name in the formula its kind: "elem" (the result's shape), "row" (one
            value per column) or "channel" (one value per channel, axis 1); or a dictionary such as
            {"kind": "row", "grad": False}; or a number, which makes the name a scalar with that
            default

    Returns:
        A function of NumPy arrays, GPU arrays and PyTorch tensors, with the operands as arguments.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: the formula or an operand is invalid; the message says why.
    """
    return _fused("fuse", expr, operands, {})


def fuse_row(
    expr: str | Mapping[str, str], /, *, saved: Mapping[str, str] | None = None, **operands: Any
) -> Fused:
    """Makes an op over rows (the last axis) from its formula; the gradient is derived.

    The formula may also call sum, mean, max, min and prod with one argument, which reduce over the
    row.

        f = kf.fuse_row("x * rsqrt(mean(x * x) + eps) * (1 + w)", x="elem", w="row", eps=1e-6)

    Args:
        expr: as in kf.fuse
        saved: {name: formula} of row values that the forward stores for the gradient; expr may use
            the names
        **operands: as in kf.fuse, and "per_row" (one value per row); {"kind": "row", "absent": 1}
            makes a "row" or "per_row" operand optional

    Returns:
        A function of NumPy arrays, GPU arrays and PyTorch tensors, with the operands as arguments.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: the formula or an operand is invalid; the message says why.
    """
    return _fused(
        "fuse_row", expr, operands, {"family": "rows"} | ({"saved": dict(saved)} if saved else {})
    )
