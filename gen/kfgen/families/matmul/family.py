# SPDX-License-Identifier: Apache-2.0
"""The matmul family: matrix products with prologues and epilogues.

An entry's `load` makes the left factor from its operands; its `expr` makes results from
accumulators.
"""

from kfgen.families.family import Family, wrong
from kfgen.families.matmul import fields
from kfgen.families.matmul.fields import ACC, JOINED
from kfgen.families.matmul.kernel import SUMS, VECTORS, MatmulKernel
from kfgen.families.matmul.text import statements
from kfgen.language.expr import ExprError, Graph, parse
from kfgen.model import limits
from kfgen.model.derive import in_order
from kfgen.model.dtypes import ROUNDED
from kfgen.model.kinds import ELEM, ROW, Kind
from kfgen.model.shapes import ONE, REST
from kfgen.model.types import GRADIENTS

# Shapes by layout: n as it is, t with its columns as rows. Joined tensors are concatenated along
# the columns.
FORMS = {
    left + right: {
        "elem": "batch, rows, cols",
        "left": lefts,
        "right": rights,
        "row": "batch, cols",
        "depth": "batch, depth",
    }
    for left, lefts in (("n", "batch, rows, depth"), ("t", "batch, depth, rows"))
    for right, rights in (("n", "batch, depth, cols"), ("t", "batch, cols, depth"))
}
for kind, both in JOINED.items():
    for form in FORMS.values():
        form[both] = form[kind].replace("cols", "2 * cols")


class Matmul(Family):
    kernel = MatmulKernel
    name = "matmul"
    title = "Products of matrices"
    backends = ("cuda", "c")
    heavy = True
    types, roles, summed, storage = "products", (GRADIENTS,), SUMS, tuple(ROUNDED)
    autocast = "low"
    forms = FORMS
    layouts = ("nn", "tn", "tt")
    sizes = dict.fromkeys(forms, "batch, rows, cols, depth")
    # A plain left factor may have several dimensions of rows, like torch.nn.Linear's input.
    axes = {
        form: (
            None,
            {"batch": REST, "rows": REST if form[0] == "n" else ONE, "cols": ONE, "depth": ONE},
        )
        for form in forms
    }
    levels = dict.fromkeys(forms, ("", "_batch"))
    # Products read the factors: check() verifies which.
    kinds = (
        Kind("left", index=True),
        Kind("right", index=True),
        ROW,
        Kind("depth"),
        ELEM.but(whole=False),
        *(Kind(both, small=kind == "row", operand=False) for kind, both in JOINED.items()),
    )
    fields = ("saved", "layout")
    names = (ACC, "beta")

    @property
    def header(self):
        return "kf/core/matmul/op"

    def own_fields(self, f, op):
        return fields.read(f, op, self.names)

    def absent(self, kind):
        return kind in VECTORS

    def loaded(self, op):
        return op.own["load"]

    def named(self, op):
        return [*op.own["load"], *self.products(op)[1], *op.own["joined"]]

    def renamed(self, op, renaming):
        joined = op.own["joined"].items()
        return op.own | {"joined": {renaming.name(n): renaming.names(of) for n, of in joined}}

    def check_operands(self, f, operands):
        for kind in ("left", "right"):
            if not any(o.kind == kind for o in operands):
                raise f.error(
                    "operands",
                    f'have no "{kind}"',
                    'give it two factors: operands = { x = "left", weight = "right" }',
                )
        if any(o.absent not in (None, 0) for o in operands):
            raise f.error(
                "operands",
                "stand for another number than 0 where they are NULL",
                "write absent = 0, or leave it out",
            )

    def products(self, op):
        return fields.products(op)

    def graph(self, op):
        graph = Graph()
        factor, products = self.products(op)
        known = {name: graph.var(name) for name in op.scalars}
        loads, act = {}, {"act": None} if op.has_act else {}
        operands = {
            kind: {o.name: graph.var(o.name) for o in op.operands if o.kind == kind}
            for kind in self.operand_kinds
        }
        try:
            for name, text in op.own["load"].items():
                loads[name] = parse(graph, text, known | operands["left"] | operands["depth"] | act)
        except ExprError as e:
            e.field = "load"
            raise
        env = (
            known
            | operands["row"]
            | operands["elem"]
            | {name: graph.var(name) for name in products}
        )
        for name in in_order(op.saved):
            try:
                env[name] = parse(graph, op.saved[name], env)
            except ExprError as e:
                e.field = "saved"
                raise
        outs = {
            name: parse(graph, text, env | act | {"dropout": None})
            for name, text in op.outputs.items()
        }
        return graph, operands["left"] | operands["right"] | operands["depth"] | env | loads, outs

    def check(self, op, graph, env, outputs):
        wide = {o.grad_dtype for o in op.operands if o.grad and o.kind in SUMS}
        if len(wide) > 1 or any(o.grad_dtype for o in op.operands if o.kind not in SUMS):
            raise wrong(
                op,
                "operands",
                "have gradients of several type variables",
                'give all "right", "row" and "depth" the same: grad = "G"',
            )
        if len(op.own["load"]) > 1:
            raise wrong(
                op, "load", "makes several factors", 'write one: { value = "act(gate) * up" }'
            )
        factor, products = self.products(op)
        read = graph.variables([*outputs.values(), *(env[n] for n in op.saved)])
        for name in products:
            if name not in read:
                raise wrong(
                    op,
                    "expr",
                    f"does not read the product `{name}`",
                    "remove the product, or read it",
                )
        for name in sorted(
            {o.name for o in op.operands if o.kind == "left"} - graph.variables([env[factor]])
        ):
            raise wrong(
                op,
                "operands",
                f"`{name}` is not read by the left factor",
                'read it in `load`, or make it an "elem"',
            )
        if op.layout in ("tn", "tt") and any(o.kind == "depth" for o in op.operands):
            raise wrong(
                op,
                "layout",
                f'is {op.layout!r} of an op with a "depth"',
                "leave out one of the two",
            )
        if op.own["accumulates"] and (len(outputs) > 1 or op.saved):
            raise wrong(
                op,
                "accumulates",
                "belongs to an op with one result, of which nothing is saved",
                "leave out one of the two",
            )
        if len(outputs) + len(op.saved) > limits.SUM_OUTPUTS:
            raise wrong(
                op,
                "outputs",
                f"are {len(outputs) + len(op.saved)} with what is saved",
                f"at most {limits.SUM_OUTPUTS} are possible",
            )

    def check_gradients(self, op):
        """Rejects gradients that read a product: the backward does not recompute it."""
        k = self.backward(op, op.types.uniform("f64"))
        lost = {p.name for p in k.products} & k.graph.variables(k.roots)
        if lost:
            name = sorted(lost)[0]
            fix = f'add saved = {{ pre = "{name}" }}, and read that'
            raise wrong(
                op, "saved", f"does not have what the gradient reads of the product `{name}`", fix
            )

    def reference(self, op, act):
        from kfgen.families.matmul.reference import MatmulReference

        return MatmulReference(self, op, act)

    def statements(self, kernel, act, library, by=False):
        return statements(kernel, act, library, by)


FAMILY = Matmul()
