# SPDX-License-Identifier: Apache-2.0
"""Functions with a run-time activation: kernels for the templates, and the headers kf/any."""

import copy
from dataclasses import dataclass, field, replace

from kfgen.language.emit import emit, reads
from kfgen.model.dtypes import INT_DTYPES
from kfgen.model.entries import ANY_ID

WORD = "activation"  # stands in names for the activation's name


@dataclass(frozen=True)
class RuntimeActivation:
    """Placeholder for the activation of such a function."""

    name: str = WORD
    id: int = ANY_ID
    scalars: dict = field(default_factory=dict)
    scalar_info: dict = field(default_factory=dict)
    ulp: dict = field(default_factory=dict)
    rising: tuple = ()
    ints: bool = True
    builtin: bool = True
    dexpr_out: None = None


RUNTIME_ACTIVATION = RuntimeActivation()


def has(kernel):
    """True if the kernel has functions with a run-time activation."""
    return kernel.has_act and kernel.family.runtime_activation


def kernel(k):
    """Returns the kernel for all activations: CUDA has its own, C dispatches to theirs."""
    found = _kernel(k)
    found._renamed = _kernel(k.renamed)
    return found


def has_any_strides(k):
    """True if the kernel exists for arbitrary strides: its elements are independent."""
    return has(k) and k.permutable and not k.sums


def any_strides(k):
    """Returns the kernel for all activations and arbitrary strides."""
    found = kernel(k)
    for one in (found, found._renamed):
        one.any_strides, one.name = True, f"{one.name}_apart"
    return found


def _kernel(k):
    found = copy.copy(k)
    for cached in ("cuda", "c", "_renamed"):
        found.__dict__.pop(cached, None)
    found.runtime_activation, found.acts, found.choice = True, [RUNTIME_ACTIVATION], list(k.acts)
    found.without = f'"{" ".join(k.op.without)}"' if k.op.without else "NULL"
    found.ints = int(k.dtypes[0] in INT_DTYPES)
    found.scalar_word = "f64" if k.scalar_ctype == "double" else "f32"
    found.result_slot = _result_slot(k) if k.by_result else None
    if found.result_slot:
        found.loads = [s for s in k.loads if s.reads != "result"]
    found.name = k.function(WORD).removeprefix("kf_")
    return found


def _result_slot(k):
    """Returns the input that a launch replaces by the activation's result: a kernel reads one of
    the two.
    """
    result = next(s for s in k.loads if s.reads == "result")
    return next(
        (
            s
            for s in k.loads
            if s.reads == "act" and (s.kind, s.dtype) == (result.kind, result.dtype)
        ),
        None,
    )


@dataclass
class Call:
    """Calls the activation for a vector: names of its arguments and results."""

    name: str
    bwd: bool
    lines: list
    x: str
    dy: str
    guard: str  # condition under which it is needed


def split(graph, roots, target, env, fixed=(), named=None, again=()):
    """Splits the activations that the roots need from the other statements. Returns ([Call] in
    order, lines of the loop after them, {node: text of its result there}). named: as for emit().
    again: nodes of `named` that an earlier pass has cached if rows are held in registers.
    """
    exact = replace(target, cheap=target.cheap - {"quotient"})  # results depend on the last bits
    named, fixed, calls, lines = named or {}, dict(fixed), [], []
    inside = dict(fixed)  # texts in the loops of the calls, which have no lines
    for i in reads(graph, roots, fixed):
        node = graph.nodes[i]
        if node.op not in ("act", "act_bwd") or i in fixed:
            continue
        own, texts = emit(
            graph,
            list(node.args),
            exact,
            env,
            fixed=inside,
            named={n: form for n, form in named.items() if n not in inside},
        )
        name, bwd = f"kfi_z{len(calls)}", node.op == "act_bwd"
        x = target.gradient_argument(texts[0]) if bwd and target.gradient_argument else texts[0]
        calls.append(Call(name, bwd, own, x, texts[-1], "!in_registers" if i in again else ""))
        inside[i] = fixed[i] = f"{name}[e]"
        if i in named:
            fixed[i], form = named[i]
            inside[i] = f"({form.replace('{}', f'{name}[e]')})"
            lines.append(f"const {target.ctype} {fixed[i]} = {form.replace('{}', f'{name}[e]')};")
    return calls, lines, fixed
