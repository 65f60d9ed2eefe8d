# SPDX-License-Identifier: Apache-2.0
"""Functions whose activation is an argument: what such a kernel is to the templates."""

import copy
from dataclasses import dataclass, field, replace

from kfgen.language.emit import emit, reads
from kfgen.model import names
from kfgen.model.dtypes import INT_DTYPES
from kfgen.model.entries import ANY_ID

WORD = "activation"  # in names, where those of one activation have its word


@dataclass(frozen=True)
class RuntimeActivation:
    """What stands for the activation of such a function."""

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
    """Whether there is such a function of it."""
    return kernel.has_act and kernel.family.runtime_activation


def kernel(k):
    """The kernel of all its activations: in CUDA one of its own, in C what calls theirs."""
    found = _kernel(k)
    found._renamed = _kernel(k.renamed)
    return found


def has_any_strides(k):
    """Whether there is a kernel of its tensors that lie in any way: an op that visits elements one by one, in any order."""
    return has(k) and k.permutable and not k.sums


def any_strides(k):
    """The kernel of all its activations for such tensors."""
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
    found.name = names.function(k.op.pattern, WORD, k.dtypes, k.bwd).removeprefix("kf_")
    return found


def _result_slot(k):
    """The input in whose place a kernel is given the activation's result: it reads one of the two."""
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
    """A call of the activation for a vector: where its arguments are put, and its results are found."""

    name: str
    bwd: bool
    lines: list
    x: str
    dy: str
    guard: str  # under which it is needed


def split(graph, roots, target, env, fixed=(), named=None, again=()):
    """([Call], lines for the loop behind them, {node: how its result is spelled there}) of the activations that the roots need, in the order of the
    calls. Their arguments are written as in one expression with the rest. named: as emit() has it. again: those of its nodes that an earlier pass
    has left, unless rows are not in registers."""
    exact = replace(target, cheap=target.cheap - {"quotient"})  # the last bits of an argument show
    named, fixed, calls, lines = named or {}, dict(fixed), [], []
    inside = dict(fixed)  # the same in the loops of calls, where no lines are
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
