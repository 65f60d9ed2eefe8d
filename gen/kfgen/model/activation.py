# SPDX-License-Identifier: Apache-2.0
"""An activation as functions of both backends, and in place of its calls in an op's graph."""

import functools
from dataclasses import dataclass, field

from kfgen.language.emit import Target, emit
from kfgen.language.expr import Graph
from kfgen.model.dtypes import INT_DTYPES
from kfgen.model.names import renamed


@functools.cache
def _bwd_reads_x(act_id, expr, dexpr, scalars, build):
    g = Graph()
    env = {s: g.var(s) for s in scalars}
    return "x" in g.variables([build(g, g.var("x"), g.var("dy"), env)])


def bwd_reads_x(act):
    return _bwd_reads_x(act.id, act.expr, act.dexpr, tuple(act.scalars), act.build_bwd)


@dataclass(frozen=True)
class Given:
    """What stands for the activation in a function of C that is given it (core/act.h): the functions of many activations have one text."""

    name: str = "given"
    scalars: dict = field(default_factory=dict)


GIVEN = Given()
CALLS = {
    "act": "kfi_act",
    "act_bwd": "kfi_act_bwd",
    "act_bwd_out": "kfi_act_bwd",
}  # an operation of the graph: the argument that computes it


def rising(act):
    """Its scalars in words, as core/check.h reads them: a point for each that may be negative where the gradient is by the result; empty: all may."""
    return " ".join(s if s in act.rising else "." for s in act.scalars) if act.rising else ""


@dataclass
class ActFunction:
    """One activation in one flavour: the value and the gradient as (lines, expression, variables read)."""

    flavour: str
    ctype: str
    scalars_type: str
    fwd: tuple
    bwd: tuple | None
    fwd_scalars: bool
    bwd_scalars: bool
    bwd_out: tuple | None  # the gradient by the result
    bwd_out_scalars: bool

    @property
    def is_int(self):
        return self.flavour in INT_DTYPES

    @property
    def given_type(self):
        """In C, of the scalars of an activation that a function is given (core/act.h)."""
        return f"kfi_act_scalars_{'f64' if self.flavour == 'f64' else 'f32'}"

    @property
    def given(self):
        """[(a word of the name, arguments)] of the functions of C that can be given: all take the scalars in a struct."""
        found = [
            ("", ("x",), self.fwd),
            ("_bwd", ("x", "dy"), self.bwd),
            ("_bwd_out", ("y", "dy"), self.bwd_out),
        ]
        return [(word, arguments) for word, arguments, code in found if code]


class ActCode:
    """One activation as functions: per flavour the expressions of value and gradient."""

    def __init__(self, act):
        self.act, self.name, self.id, self.scalars = act, act.name, act.id, list(act.scalars)
        self.renamed = {s: renamed(s) for s in act.scalars}  # what its functions call them
        self.brief, self.reads_x = act.brief, bwd_reads_x(act)
        self.by_result, self.by_id = (
            act.dexpr_out is not None,
            ~act.id,
        )  # of kernels whose gradient is by the result
        self.rising = rising(act)

    @property
    def flavours(self):
        return ["f32", "lp", "f64"] + (["i32", "i64"] if self.act.ints else [])

    @property
    def public(self):
        return self.name != "none"

    @property
    def facts(self):
        """The fields of core/choose.h's kfi_act_facts."""
        rising_ = f'"{self.rising}"' if self.rising else "NULL"
        defaults = (
            ", ".join(repr(float(self.act.scalar_info[s].default)) for s in self.scalars) or "0"
        )
        flags = ", ".join(
            str(int(x)) for x in (len(self.scalars), self.reads_x, self.by_result, self.act.ints)
        )
        return f'{{{self.id}, "{self.name}", {rising_}, {flags}, {{{defaults}}}}}'

    def device_call(self, flavour, tag, bwd):
        """Its call for element e of arrays x and dy."""
        return f"kfi_act{'_bwd' if bwd else ''}_{flavour}(kfi_tag<{tag}>(), x[e], {'dy[e], ' if bwd else ''}s)"

    def functions(self, cpu):
        """cpu: a scalar is an argument of its own; CUDA: a field of s."""
        scalar = {
            name: name if cpu else f"s.v[{i}]" for i, name in enumerate(self.renamed.values())
        }
        found = []
        for f in self.flavours:
            ctype = {
                "f64": "double",
                "i32": "int32_t" if cpu else "kf_i32",
                "i64": "int64_t" if cpu else "kf_i64",
            }.get(f, "float")
            fwd = self._code(f, cpu, scalar, lambda g, env: self.act.build(g, g.var("x"), env))
            bwd = (
                None
                if f in INT_DTYPES
                else self._code(
                    f,
                    cpu,
                    scalar,
                    lambda g, env: self.act.build_bwd(g, g.var("x"), g.var("dy"), env),
                )
            )
            by = None
            if bwd and self.by_result:
                by = self._code(
                    f,
                    cpu,
                    scalar,
                    lambda g, env: self.act.build_bwd_out(g, g.var("y"), g.var("dy"), env),
                )
            found.append(
                ActFunction(
                    f,
                    ctype,
                    "kfi_scalars_f64" if f == "f64" else "kfi_scalars_f32",
                    fwd,
                    bwd,
                    self._has_scalars(fwd),
                    self._has_scalars(bwd),
                    by,
                    self._has_scalars(by),
                )
            )
        return found

    def _has_scalars(self, code):
        return bool(code and code[2] & set(self.renamed.values()))

    def _code(self, flavour, cpu, scalar, build):
        """(lines, expression, names used). scalar: how a scalar's name is spelled."""
        graph = Graph()
        root = build(graph, {s: graph.var(name) for s, name in self.renamed.items()})
        target = Target("kfi_cpu_" if cpu else "kfi_", flavour, cpu)
        lines, (text,) = emit(graph, [root], target, scalar, fixed={}, round_roots=True)
        return lines, text, graph.variables([root])
