# SPDX-License-Identifier: Apache-2.0
"""The family `rope_norm`: heads that are normalised by a reduction over their elements, then
rotated as in `pairs`.
"""

import functools
from types import SimpleNamespace

from kfgen.families.family import wrong
from kfgen.families.rope.family import ANGLES, MORE, Rope, RopeKernel
from kfgen.families.rope_norm.c import RopeNormC
from kfgen.families.rope_norm.cuda import RopeNormCuda
from kfgen.language.emit import counts
from kfgen.language.expr import ExprError, Graph, parse, stages
from kfgen.language.formulas import LIBRARIES, Printer, elementwise
from kfgen.language.gradient import gradient
from kfgen.language.primitives import COUNT, ELEM, PER_COUNT, REDUCTIONS, UNIFORM
from kfgen.model import contract, limits
from kfgen.model.kernel import Tensor
from kfgen.model.kinds import Kind
from kfgen.model.names import gradient_of

# Names that `norm` reads: an element of a head, its weight, and the gradient of the result.
HEAD, WEIGHT, GIVEN = ("head", "weight", "dy")


def norm_graph(op):
    """(graph, {name: node}, node of a normalised element)."""
    graph = Graph(dict.fromkeys(op.scalars, UNIFORM))
    env = {name: graph.var(name) for name in (HEAD, WEIGHT, *op.scalars)}
    return graph, env, parse(graph, op.own["norm"], env)


class RopeNormKernel(RopeKernel):
    weights = (*ANGLES, "scale")
    form = "both"
    summed_over = "rows and heads"

    @functools.cached_property
    def cuda(self):
        return RopeNormCuda(self)

    @functools.cached_property
    def c(self):
        return RopeNormC(self)

    def _build(self):
        super()._build()
        self.norm, env, normed = norm_graph(self.op)
        self.scales = [s for s in self.operands if s.kind == "scale"]
        self.whole = [
            s for s in self.operands if s.kind not in ("scale", *ANGLES, "number")
        ]  # the forward's tensors of heads
        if self.bwd:
            given = self.norm.var(GIVEN)
            found = gradient(self.norm, {normed: given}, [env[HEAD], env[WEIGHT]])
            self.normed = {"head": found[env[HEAD]], "weight": found[env[WEIGHT]]}
            self.outputs += [
                Tensor(
                    gradient_of(s.name),
                    "scale",
                    self.dtype,
                    "sum",
                    "gradient",
                    "T",
                    (gradient_of(s.name),),
                    of=s.name,
                    exprs=[self.normed["weight"]],
                    required=False,
                )
                for s in self.scales
            ]
        else:
            self.normed = {"head": normed}
        read = self.norm.variables(list(self.normed.values()))
        for s in self.whole + self.scales:
            s.reads = (
                "always"
                if not self.bwd or (WEIGHT if s in self.scales else HEAD) in read
                else "never"
            )
        self.streams = self.inputs + self.outputs

    @property
    def gradients(self):
        """Gradients of the weights: of the first and of the second tensor."""
        return [s for s in self.outputs if s.kind == "scale"]

    @property
    def used_scalars(self):
        read = self.graph.variables(self.roots) | self.norm.variables(list(self.normed.values()))
        return [s for s in self.scalars if s in read]

    @property
    def unread_scalars(self):
        return [s for s in self.scalars if s not in self.used_scalars]

    @property
    def flops(self):
        return counts(self.graph, self.roots) + counts(self.norm, list(self.normed.values()))

    def summed_extents(self, stream):
        return ["rows", "kv_heads" if stream is self.outputs[-1] else "heads"]

    def per_element(self, stream):
        return 0 if stream.kind == "scale" else super().per_element(stream)

    def formulas(self, by):
        first, norm = self.operands[0], contract.one_line(self.op.own["norm"])
        if not self.bwd:
            turned = [
                contract.assigned(f"{part}_", text)
                for part, text in zip(first.parts, self.op.outputs.values())
            ]
            return [f"of each head {norm}, of whose pairs", *turned]
        lines, texts = contract.write(self.norm, list(self.normed.values()), letter="n")
        turned, both = contract.write(self.graph, self.roots)
        return [
            *turned,
            *(f"{GIVEN} of {part} = {text}" for part, text in zip(first.parts, both)),
            *lines,
            f"d{HEAD} = {texts[0]}",
            f"d{WEIGHT} = sum over {self.summed_over} of {texts[1]}",
        ]


class RopeNorm(Rope):
    kernel = RopeNormKernel
    name = "rope_norm"
    title = "Normalised heads, by positions"
    forms = {"both": {**Rope.forms["both"], "scale": "dim"}}
    sizes = {"both": Rope.sizes["both"]}
    kinds = (
        *(kind for kind in Rope.kinds if kind.name != "frequency"),
        Kind("scale", index=True),  # `norm` reads them, one per tensor
    )
    names = (HEAD, WEIGHT)
    autocast = "float32"

    def own_fields(self, f, op):
        return {"norm": f.get("norm", str, what='"head * rsqrt(mean(head * head) + eps) * weight"')}

    def check_operands(self, f, operands):
        found = [[o for o in operands if o.kind == kind] for kind in (MORE, "scale")]
        if [len(of) for of in found] != [1, 2]:
            fix = 'write k = "more", q_weight = "scale", k_weight = "scale"'
            raise f.error("operands", "are not two tensors of pairs with a weight for each", fix)
        super().check_operands(f, [o for o in operands if o.kind != "scale"])

    def check(self, op, graph, env, outputs):
        super().check(op, graph, env, outputs)
        try:
            norm, _, node = norm_graph(op)
        except ExprError as e:
            e.field = "norm"
            raise
        read = norm.variables([node])
        words = {n.op for n in norm.nodes} & set(REDUCTIONS.values())
        if (
            not {HEAD, WEIGHT} <= read
            or norm.level(node) != ELEM
            or words != {"sum"}
            or len(stages(norm, [node])) > limits.REDUCTIONS
        ):
            fix = 'write norm = "head * rsqrt(mean(head * head) + eps) * weight"'
            raise wrong(
                op, "norm", "is not an element made of `head`, `weight` and sums over the head", fix
            )

    def _normalised(self, k, lib, tensor, weight, heads):
        """(lines, texts) of `norm` or of its gradients."""
        frame = SimpleNamespace(elem=["rows", heads, "dim"], reduced=(2,), all=frozenset((0, 1, 2)))
        axes = {
            HEAD: frame.all,
            WEIGHT: frozenset((2,)),
            GIVEN: frame.all,
            COUNT: None,
            PER_COUNT: None,
        } | dict.fromkeys(k.scalars)
        printer = Printer(lib, frame, k.norm, axes, tensor)
        printer.run(list(k.normed.values()))
        texts = [printer.whole(node, frame.all) for node in k.normed.values()]
        return [f"{HEAD}, {WEIGHT} = {tensor}, {weight}", *printer.lines], texts

    def statements(self, k, act, library, by=False):
        lib = LIBRARIES[library]
        number, sources = k.number.name, (k.source, k.second_source)
        lines = [
            f"{number} = {lib.name}.arange(rows{lib.device.format(k.source.name)}) "
            f"if {number} is None else {number}",
            f"there_ = (({number} >= 0) & ({number} < positions)).reshape(rows, 1, 1)",
            f"place_ = {lib.bounded.format(number, 0, 'max(positions, 1) - 1')}",
            f"{COUNT}, {PER_COUNT} = dim, 1 / max(dim, 1)",
        ]
        lines += [f"{s.name} = {s.name}[place_].reshape(rows, 1, pairs)" for s in k.read_angles]
        own, texts = elementwise(k, act, library)
        first, second = (
            ("0:2 * pairs:2", "1:2 * pairs:2") if k.neighbours else (":pairs", "pairs:2 * pairs")
        )
        parts = k.source.parts
        for i, heads in enumerate(("heads", "kv_heads")):
            norm, normed = self._normalised(k, lib, k.whole[i].name, k.scales[i].name, heads)
            turned = sources[i].name
            if not k.bwd:
                lines += [*norm, f"normed_ = {normed[0]}"]
                turned = "normed_"
            lines += [
                f"{parts[0]}, {parts[1]} = {turned}[:, :, {first}], {turned}[:, :, {second}]",
                *own,
            ]
            outside = "0.0" if k.bwd else "float('nan')"
            lines += [
                f"{part}_to_ = {lib.name}.where(there_, {text}, {outside})"
                for part, text in zip(parts, texts)
            ]
            both = [f"{part}_to_" for part in parts]
            if k.neighbours:
                columns = ", ".join(f"{name}.reshape(rows, {heads}, pairs, 1)" for name in both)
                both = [f"{lib.join}(({columns}), 3).reshape(rows, {heads}, 2 * pairs)"]
            whole = f"{lib.join}(({', '.join(both)}, {turned}[:, :, 2 * pairs:]), 2)"
            if not k.bwd:
                lines.append(f"{k.outputs[i].name} = {whole}")
                continue
            over = f"{lib.axes}=(0, 1)"
            lines += [
                f"{GIVEN} = {whole}",
                *norm,
                f"{k.outputs[i].name} = {normed[0]}",
                f"{k.gradients[i].name} = {lib.reductions['sum']}({normed[1]}, {over})",
            ]
        return lines


FAMILY = RopeNorm()
