# SPDX-License-Identifier: Apache-2.0
"""Writes an activation as functions of both backends."""

import functools
from dataclasses import dataclass, field

from kfgen.language.emit import Target, emit
from kfgen.language.expr import Graph
from kfgen.model.dtypes import INT_DTYPES
from kfgen.model.names import renamed
from kfgen.model.signature import bounds


@functools.cache
def _bwd_reads_x(act_id, expr, dexpr, scalars, build):
    g = Graph()
    env = {s: g.var(s) for s in scalars}
    return "x" in g.variables([build(g, g.var("x"), g.var("dy"), env)])


def bwd_reads_x(act):
    return _bwd_reads_x(act.id, act.expr, act.dexpr, tuple(act.scalars), act.build_bwd)


@dataclass(frozen=True)
class Given:
    """Placeholder for the activation in a C function that takes it as an argument (core/act.h), so
    that many activations share one text.
    """

    name: str = "given"
    scalars: dict = field(default_factory=dict)


GIVEN = Given()
# {node of the graph: C argument that computes it}
CALLS = {"act": "kfi_act", "act_bwd": "kfi_act_bwd", "act_bwd_out": "kfi_act_bwd"}


def rising(act):
    """Lists the activation's scalars for core/check.h: the name if a gradient by the result
    requires the scalar to be >= 0, else a point. Empty if no scalar has this restriction.
    """
    return " ".join(s if s in act.rising else "." for s in act.scalars) if act.rising else ""


@dataclass
class ActFunction:
    """An activation in one flavour: value and gradients as (lines, expression, variables read)."""

    flavour: str
    ctype: str
    scalars_type: str
    fwd: tuple
    bwd: tuple | None
    fwd_scalars: bool
    bwd_scalars: bool
    bwd_out: tuple | None  # the gradient that reads the result
    bwd_out_scalars: bool

    @property
    def is_int(self):
        return self.flavour in INT_DTYPES

    @property
    def given_type(self):
        """C type of the scalars that accompany an activation argument (core/act.h)."""
        return f"kfi_act_scalars_{'f64' if self.flavour == 'f64' else 'f32'}"

    @property
    def given(self):
        """[(name suffix, arguments)] of the C functions that can be passed as arguments; all take
        the scalars in a struct.
        """
        found = [
            ("", ("x",), self.fwd),
            ("_bwd", ("x", "dy"), self.bwd),
            ("_bwd_out", ("y", "dy"), self.bwd_out),
        ]
        return [(word, arguments) for word, arguments, code in found if code]


class ActCode:
    """An activation as functions: expressions of value and gradient per flavour."""

    def __init__(self, act):
        self.act, self.name, self.id, self.scalars = act, act.name, act.id, list(act.scalars)
        self.renamed = {s: renamed(s) for s in act.scalars}  # {scalar: name in generated code}
        self.brief, self.reads_x = act.brief, bwd_reads_x(act)
        # by_id: id of the kernels whose gradient reads the result.
        self.by_result, self.by_id = act.dexpr_out is not None, ~act.id
        self.rising = rising(act)

    @property
    def flavours(self):
        return ["f32", "lp", "f64"] + (["i32", "i64"] if self.act.ints else [])

    @property
    def bounds(self):
        """Bounds of its scalars for core/check.h."""
        return bounds(self.act.scalar_info)

    @property
    def public(self):
        return self.name != "none"

    @property
    def facts(self):
        """Initialiser of core/choose.h's kfi_act_facts."""
        rising_ = f'"{self.rising}"' if self.rising else "NULL"
        defaults = (
            ", ".join(repr(float(self.act.scalar_info[s].default)) for s in self.scalars) or "0"
        )
        flags = ", ".join(
            str(int(x)) for x in (len(self.scalars), self.reads_x, self.by_result, self.act.ints)
        )
        bounded = f'"{" ".join(self.scalars)}", {f"kfi_{self.name}" if self.bounds else "NULL"}'
        bounded += f", {len(self.bounds)}"
        return f'{{{self.id}, "{self.name}", {rising_}, {bounded}, {flags}, {{{defaults}}}}}'

    def device_call(self, flavour, tag, bwd):
        """Returns the call for element e of arrays x and dy."""
        suffix, dy = ("_bwd", "dy[e], ") if bwd else ("", "")
        return f"kfi_act{suffix}_{flavour}(kfi_tag<{tag}>(), x[e], {dy}s)"

    def functions(self, cpu):
        """Returns an ActFunction per flavour. In C, scalars are arguments; in CUDA, fields of s."""
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
        """Returns (lines, expression, names used). scalar: {name: text}."""
        graph = Graph()
        root = build(graph, {s: graph.var(name) for s, name in self.renamed.items()})
        target = Target("kfi_cpu_" if cpu else "kfi_", flavour, cpu)
        lines, (text,) = emit(graph, [root], target, scalar, fixed={}, round_roots=True)
        return lines, text, graph.variables([root])
