# SPDX-License-Identifier: Apache-2.0
"""The family `rope`: rotary embeddings. Pairs of a head's elements are rotated by an angle."""

import functools

from kfgen.families.family import Family, wrong
from kfgen.families.rope.c import RopeC
from kfgen.families.rope.cuda import RopeCuda
from kfgen.language.formulas import LIBRARIES, elementwise
from kfgen.language.gradient import gradient
from kfgen.model import derive
from kfgen.model.kernel import Kernel, Tensor
from kfgen.model.kinds import Kind
from kfgen.model.names import gradient_of

PAIRED = ("halves", "neighbours")
MORE = "more"  # a second tensor of pairs with its own number of heads, computed in the same way
# Kinds of tables: one row per position, or one row of frequencies.
ANGLES = ("angle", "frequency")
COUNTED = "0 to rows - 1"  # positions if the operand is NULL


class RopeKernel(Kernel):
    name_fields = (*Kernel.name_fields, "more")
    weights = ANGLES  # kinds of operands that do not change between calls

    @property
    def form(self):
        return ("computed_" if self.computed else "") + ("both" if self.second_source else "paired")

    @property
    def computed(self):
        """True if angles are computed from the position; there is no table by position."""
        return any(s.kind == "frequency" for s in self.angles)

    @property
    def position_count(self):
        """The number of positions in generated code."""
        return "KFI_ANY_POSITION" if self.computed else "positions"

    @functools.cached_property
    def cuda(self):
        return RopeCuda(self)

    @functools.cached_property
    def c(self):
        return RopeC(self)

    def _build(self):
        op = self.op
        self.graph, env, outs = self.family.graph(op)
        self.operands = [
            self.tensor_of(
                o,
                "weight" if o.kind in self.weights else "input",
                absent=COUNTED if o.kind == "number" else None,
            )
            for o in op.operands
        ]
        x = next(s for s in self.operands if s.kind in PAIRED)
        more = next((s for s in self.operands if s.kind == MORE), None)
        self.number = next(s for s in self.operands if s.kind == "number")
        self.angles = [s for s in self.operands if s.kind in ANGLES]
        self.neighbours = x.kind == "neighbours"
        names = [f"{s.name}_out" for s in (x, more)] if more else ["out"]
        if self.bwd:
            self._build_backward(x, more, names, env, outs)
        else:
            self.inputs, self.source, self.second_source = self.operands, x, more
            self.outputs = [
                self._of_pairs(n, kind, "out", "output", parts, exprs=exprs)
                for n, kind, parts, exprs in zip(
                    names, (x.kind, MORE), (tuple(outs), ()), (list(outs.values()), [])
                )
            ]
        self.roots = [e for s in self.outputs for e in s.exprs]
        self._set_reads(x, more)
        self.streams = self.inputs + self.outputs
        self.scalars, self.keeps = list(op.scalars), False

    def _of_pairs(self, name, kind, role, use, parts, **more):
        """A tensor of pairs in the op's dtype."""
        return Tensor(name, kind, self.dtype, role, use, "T", parts, **more)

    def _build_backward(self, x, more, names, env, outs):
        """Sets the inputs and outputs of a backward."""
        douts = {name: self.graph.var(gradient_of(name)) for name in outs}
        found = gradient(self.graph, {outs[n]: douts[n] for n in outs}, [env[v] for v in x.parts])
        grads = [self.graph.const(0) if found[env[v]] is None else found[env[v]] for v in x.parts]
        sources = [
            self._of_pairs(gradient_of(of), kind, "in", "gradient", parts, of=of)
            for of, kind, parts in zip(names, (x.kind, MORE), (tuple(map(gradient_of, outs)), ()))
        ]
        self.source, self.second_source = (*sources, None)[:2]
        self.inputs = [*self.operands, *sources]
        self.outputs = [
            self._of_pairs(
                gradient_of(s.name),
                s.kind,
                "out",
                "gradient",
                tuple(map(gradient_of, s.parts)) if s is x else (),
                of=s.name,
                exprs=grads if s is x else [],
                required=False,
            )
            for s in ((x, more) if more else (x,))
        ]

    def _set_reads(self, x, more):
        """Sets which inputs are read, and `more`: {first tensor of pairs: its second tensor}."""
        read = self.graph.variables(self.roots) | {self.number.name, *self.source.parts}
        both = [(x, more), (self.source, self.second_source), self.outputs] if more else []
        self.more, as_first = {s.name: m for s, m in both}, {m.name: s for s, m in both}
        for s in self.inputs:
            of = as_first.get(s.name, s)
            s.reads = "always" if read & {of.name, *of.parts} else "never"

    @property
    def paired(self):
        """Tensors of pairs that are read. The first also provides the elements behind the pairs."""
        return [
            self.source,
            *(
                s
                for s in self.inputs
                if s.kind in PAIRED and s.reads != "never" and s is not self.source
            ),
        ]

    @property
    def read_angles(self):
        return [s for s in self.angles if s.reads != "never"]

    def below(self, stream):
        return "positions" if stream is self.number and not self.computed else None

    def touched(self, stream):
        """Extents that a call reads: of a table, one row per position."""
        return ["rows", "pairs"] if stream.kind == "angle" else self.shape(stream)

    def per_element(self, stream):
        return 1 if stream.kind in PAIRED else 0

    element_note = "elements: a positions x pairs, f pairs, n rows, w dim, e and m heads"

    @property
    def element_codes(self):
        """Code of each tensor's number of elements, for core/rope/check.h."""
        return "".join(
            {"angle": "a", "frequency": "f", "number": "n", MORE: "m", "scale": "w"}.get(
                s.kind, "e"
            )
            for s in self.inputs + self.outputs
        )

    @property
    def head_counts(self):
        """Heads per row in generated code: first tensor, second tensor."""
        return ("heads", "kv_heads" if self.second_source else "0")


class Rope(Family):
    kernel = RopeKernel
    name = "rope"
    title = "Pairs of elements, by positions"
    forms = {
        "paired": {
            "elem": "rows, heads, dim",
            "halves": "rows, heads, dim",
            "neighbours": "rows, heads, dim",
            "angle": "positions, pairs",
            "number": "rows",
        }
    }
    forms["both"] = {**forms["paired"], MORE: "rows, kv_heads, dim"}
    sizes = {
        "paired": "rows, heads, dim, pairs, positions",
        "both": "rows, heads, kv_heads, dim, pairs, positions",
    }
    for form in ("paired", "both"):  # without a table by position
        forms[f"computed_{form}"] = {**forms[form], "frequency": "pairs"}
        sizes[f"computed_{form}"] = sizes[form].removesuffix(", positions")
    kinds = (
        *(Kind(name, overlap="e", whole=True, parts=2) for name in PAIRED),
        # The second tensor's elements have the first one's names.
        Kind(MORE, overlap="m", whole=True, index=True),
        *map(Kind, ANGLES),
        Kind("number", vectors=False, index=True),
    )

    def dtypes(self, kind, grad):
        return {"number": ("I",), "angle": ("acc",), "frequency": ("acc",)}.get(kind, ())

    def check_operands(self, f, operands):
        of = [
            [o for o in operands if o.kind in kinds]
            for kinds in (PAIRED, ("number",), ANGLES, (MORE,))
        ]
        fixed = (
            all(not o.grad for o in of[1] + of[2])
            and all(o.dtype == "I" for o in of[1])
            and all(o.dtype == "acc" for o in of[2])
        )
        more = {f"{d}{o.name}_out" for o in of[0] + of[3] for d in ("", "d")} if of[3] else set()
        for name in sorted(more & {v for o in operands for v in (o.name, *o.values)}):
            raise f.error("operands", f"`{name}` is a result or its gradient", "rename it")
        if (
            [len(found) for found in of[:2]] != [1, 1]
            or len(of[2]) > 8
            or len(of[3]) > 1
            or not fixed
            or len({o.kind for o in of[2]}) > 1
        ):
            fix = (
                'give it x = { kind = "halves", parts = ["a", "b"] }, or "neighbours", '
                'position = { kind = "number", dtype = "I", grad = false }, tables, all "angle" or '
                'all "frequency", with dtype = "acc" and grad = false, and at most one other '
                'tensor of pairs, k = "more"'
            )
            raise f.error(
                "operands", "are not one tensor of pairs, one of positions, and tables", fix
            )

    def graph(self, op):
        return derive.element_graph(op)

    def check(self, op, graph, env, outputs):
        if len(outputs) != 2 or op.dropout or op.has_act:
            raise wrong(
                op,
                "outputs",
                "are not two, without {act} and dropout",
                'write outputs = { real = "...", imag = "..." }',
            )

    def statements(self, k, act, library, by=False):
        lib = LIBRARIES[library]
        number = k.number.name
        lines = [
            f"{number} = {lib.name}.arange(rows{lib.device.format(k.source.name)}) "
            f"if {number} is None else {number}",
            f"there_ = ({number} >= 0).reshape(rows, 1, 1)"
            if k.computed
            else f"there_ = (({number} >= 0) & ({number} < positions)).reshape(rows, 1, 1)",
        ]
        if k.computed:
            lines += [
                f"{number} = {number}.reshape(rows, 1, 1)",
                *(f"{s.name} = {s.name}.reshape(1, 1, pairs)" for s in k.read_angles),
            ]
        else:
            lines.append(f"place_ = {lib.bounded.format(number, 0, 'max(positions, 1) - 1')}")
            lines += [f"{s.name} = {s.name}[place_].reshape(rows, 1, pairs)" for s in k.read_angles]
        first, second = (
            ("0:2 * pairs:2", "1:2 * pairs:2") if k.neighbours else (":pairs", "pairs:2 * pairs")
        )
        own, texts = elementwise(k, act, library)
        outside = "0.0" if k.bwd else "float('nan')"
        result = k.outputs[0]
        for heads, of in (("heads", lambda s: s), ("kv_heads", lambda s: k.more[s.name]))[
            : 1 + bool(k.second_source)
        ]:
            lines += [
                f"{', '.join(s.parts)} = {of(s).name}[:, :, {first}], {of(s).name}[:, :, {second}]"
                for s in k.paired
            ]
            lines += own
            lines += [
                f"{part}_to_ = {lib.name}.where(there_, {text}, {outside})"
                for part, text in zip(result.parts, texts)
            ]
            both = [f"{part}_to_" for part in result.parts]
            if k.neighbours:
                columns = ", ".join(f"{name}.reshape(rows, {heads}, pairs, 1)" for name in both)
                both = [f"{lib.join}(({columns}), 3).reshape(rows, {heads}, 2 * pairs)"]
            lines.append(
                f"{of(result).name} = {lib.join}"
                f"(({', '.join(both)}, {of(k.source).name}[:, :, 2 * pairs:]), 2)"
            )
        return lines


FAMILY = Rope()
