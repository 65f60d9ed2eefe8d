# SPDX-License-Identifier: Apache-2.0
"""The family `gemm`: products of matrices. What happens to an element of the left factor on its way in (an entry's `load`) and to one of the result
on its way out (its `expr`) are expressions; their gradients are derived, those of the product itself are products again."""

import functools
from dataclasses import dataclass, replace

from kfgen.families.family import Family, wrong
from kfgen.families.matmul import fields
from kfgen.families.matmul.c import MatmulC
from kfgen.families.matmul.cuda import MatmulCuda
from kfgen.families.matmul.fields import ACC, JOINED
from kfgen.families.matmul.text import formulas, statements
from kfgen.language.expr import ExprError, Graph, parse
from kfgen.language.gradient import gradient, substitute
from kfgen.language.primitives import KEEP
from kfgen.model import limits, names
from kfgen.model.derive import activated, in_order
from kfgen.model.dtypes import ROUNDED
from kfgen.model.kernel import Kernel, Tensor
from kfgen.model.names import gradient_of

DOT = "kfi_dot"  # in gradients of the left factor: what the product of the results' gradients and the weights gives an element of it
VALUES = 12  # of an element that a seam reads and makes: include/kf/core/matmul/seam.h
SUMS = (
    "right",
    "row",
    "depth",
)  # kinds whose gradients are added up, to `beta` times what is there
VECTORS = ("row", "depth")
READS = ("always", "act", "result", "never")  # Tensor.reads, what asks for most first
# By how the factors lie: each as it is (n), or with its columns as rows (t). Of two tensors in one, the second one's columns are behind the first's.
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


@dataclass
class Product:
    """One of an op's: of the left factor, which all of them have in common, and a weight."""

    name: str  # by which expressions read an element of it
    weight: Tensor
    slope: int = -1  # of a backward: the node of its gradient


@dataclass
class Seam:
    """What is computed for an element, of which values, all of them found at its place; the order is that in which both backends hand them over.
    word: load, the left factor of its operands; store, results of the products; slopes, of a backward: the gradients of the products and what else
    needs no product; inputs: those of the left factor's operands, of `dot`."""

    word: str
    reads: list  # tensors, or names of products, or DOT
    makes: list  # tensors, or a Product (its gradient), or the left factor's name
    roots: list  # of each, its place among the kernel's roots


class MatmulKernel(Kernel):
    scratch, has_workspace = True, True
    added = ()  # its own kernels add up
    order_note = ", sums in a fixed order"
    summed_over = "rows"

    @functools.cached_property
    def cuda(self):
        return MatmulCuda(self)

    @functools.cached_property
    def c(self):
        return MatmulC(self)

    def _build(self):
        op, family = self.op, self.family
        graph, env, outs = family.graph(op)
        self.operands = [
            Tensor(
                o.name,
                o.kind,
                self.dtype,
                "in",
                "weight" if o.kind in SUMS else "input",
                "T",
                o.values,
                absent=o.absent,
            )
            for o in op.operands
        ]
        named = {s.name: s for s in self.operands}
        self.factor, products = family.products(op)
        self.products = [Product(name, named[weight]) for name, weight in products.items()]
        factor = env[self.factor]

        def result(name, role, use, node=None, **more):
            return Tensor(
                name,
                "elem",
                self.dtype,
                role,
                use,
                "T",
                (name,),
                exprs=[] if node is None else [node],
                **more,
            )

        if not self.bwd:
            self.inputs = self.operands
            self.outputs = [result(n, "out", "output", node) for n, node in outs.items()]
            self.outputs += [result(n, "out", "saved", env[n], required=False) for n in op.saved]
            roots, replaced = [], {}
        else:
            roots = self._gradients(graph, env, outs, factor)
            replaced = {env[n]: n for n in op.saved}
            self.result = activated(op, graph, outs)
            again = [result(n, "in", "output") for n in outs if n == self.result]
            kept = [result(n, "in", "saved") for n in op.saved]
            self.inputs = (
                self.operands
                + again
                + kept
                + [result(gradient_of(n), "in", "gradient", of=n) for n in outs]
            )
        self._copy(graph, [*(e for s in self.outputs for e in s.exprs), *roots, factor], replaced)
        self._reads()
        self.ins, self.outs = self.inputs, self.outputs
        self.limit("operands", "tensors", [s.name for s in self.ins + self.outs], limits.TENSORS)
        self.inputs, self.outputs = (self._joined(tensors) for tensors in (self.ins, self.outs))
        self.streams = self.inputs + self.outputs
        self.scalars, self.keeps = list(op.scalars), KEEP in self.graph.variables(self.roots)
        for seam in self.seams:
            self.limit(
                "expr",
                "values of an element",
                [getattr(v, "name", v) for v in seam.reads + seam.makes],
                VALUES,
            )
        gradients = any(o.grad for o in op.operands)
        forward = [*(o.name for o in op.operands), *outs, *op.saved]
        strided = (
            forward
            + [gradient_of(n) for n in outs if gradients]
            + [gradient_of(o.name) for o in op.operands if o.grad]
        )
        self.strided = list(dict.fromkeys(map(self.tensor_of, strided)))

    def tensor_of(self, name):
        """The argument that a tensor is, or lies in."""
        for joined, members in self.op.own["joined"].items():
            for of in (lambda n: n, gradient_of):
                if name in map(of, members):
                    return of(joined)
        return name

    def halves_of(self, stream):
        """The names of the two tensors that lie in an argument; none of one that is a tensor itself."""
        return [
            s.name
            for s in self.ins + self.outs
            if s.name != stream.name and self.tensor_of(s.name) == stream.name
        ]

    def joined_at(self, stream):
        """The axis along which two tensors lie in an argument."""
        return self.shape(stream).index("2 * cols")

    def _joined(self, tensors):
        """Arguments: of tensors that lie in one that one, in the first one's place."""
        found = {}
        for s in tensors:
            name = self.tensor_of(s.name)
            if name == s.name:
                found[name] = s
            elif name not in found:
                found[name] = replace(
                    s,
                    name=name,
                    kind=JOINED[s.kind],
                    parts=(name,),
                    of=s.of and self.tensor_of(s.of),
                )
            else:
                first = found[name]
                found[name] = replace(
                    first,
                    exprs=first.exprs + s.exprs,
                    reads=min(first.reads, s.reads, key=READS.index),
                )
        return list(found.values())

    def _gradients(self, graph, env, outs, factor):
        """Sets the outputs of a backward; gives the gradients of its products."""
        op, elements = self.op, [s for s in self.operands if s.kind in ("elem", "row")]
        wanted = [env[p.name] for p in self.products] + [env[s.name] for s in elements]
        found = gradient(graph, {outs[n]: graph.var(gradient_of(n)) for n in outs}, wanted)
        loads = [s for s in self.operands if s.kind in ("left", "depth")]
        found |= gradient(graph, {factor: graph.var(DOT)}, [env[s.name] for s in loads])
        found = {i: graph.const(0) if node is None else node for i, node in found.items()}
        slopes = [found[env[p.name]] for p in self.products]
        of = {p.weight.name: slope for p, slope in zip(self.products, slopes)} | {
            s.name: found[env[s.name]] for s in elements + loads
        }
        self.outputs = []
        for o in op.operands:
            if o.grad:
                summed = o.kind in SUMS
                same = next(
                    (
                        gradient_of(n)
                        for n in outs
                        if o.kind == "elem" and of[o.name] == graph.var(gradient_of(n))
                    ),
                    "",
                )
                self.outputs.append(
                    Tensor(
                        gradient_of(o.name),
                        o.kind,
                        self.second if summed else self.dtype,
                        "sum" if summed else "out",
                        "gradient",
                        "U" if summed and len(self.dtypes) > 1 else "T",
                        (gradient_of(o.name),),
                        of=o.name,
                        unchanged=same,
                        exprs=[of[o.name]],
                        required=False,
                    )
                )
        return slopes

    def _copy(self, graph, roots, replaced):
        """Into a graph of its own, where what was saved is what was stored: a variable. Roots: an output's value each (of a weight's gradient: the
        gradient of its product), then the gradients of the products, then the left factor."""
        self.graph, new = Graph(), {}
        for i in graph.reachable(roots):
            node = graph.nodes[i]
            args = [new[a] for a in node.args]
            new[i] = (
                self.graph.var(replaced[i])
                if i in replaced
                else self.graph.add(node.op, *args, value=node.value)
            )
        self.roots = [new[r] for r in roots]
        for s, root in zip(self.outputs, self.roots):
            s.exprs = [root]
        for p, slope in zip(self.products, self.roots[len(self.outputs) : -1]):
            p.slope = slope

    def _reads(self):
        read = self.graph.variables(self.roots)
        plain = Graph()
        anyway = (
            plain.variables(
                substitute(self.graph, plain, self.roots, {}, act=(lambda x: x, lambda x, dy: dy))
            )
            if self.bwd
            else read
        )
        anyway |= {p.weight.name for p in self.products}
        anyway |= {
            s.name for s in self.operands if s.kind in ("left", "depth")
        }  # of which the factor is made
        for s in self.inputs:
            s.reads = "always" if s.name in anyway else "act" if s.name in read else "never"
        self.by_result = bool(self.bwd and self.result) and any(
            s.reads == "act" for s in self.inputs
        )
        for s in self.inputs if self.by_result else ():
            s.reads = "result" if s.name == self.result else s.reads

    @property
    def rounded(self):
        """Whether products round their factors, where tensor cores make them; all else its functions share with those of what is stored."""
        return self.dtypes[0] in ROUNDED

    @property
    def shared(self):
        """The name of the kernels that it has in common with others, where there are any."""
        return names.internal(
            "", self.op.pattern, tuple(ROUNDED.get(d, d) for d in self.dtypes), self.bwd
        ).strip("_")

    @property
    def backends(self):
        return ("cuda",) if self.rounded else self.family.backends

    @property
    def plain(self):
        """Whether the left factor is a tensor as it is."""
        return self.graph.nodes[self.roots[-1]].op == "var"

    def passes_on(self, act):
        """The result's gradient that is that of the one product, with this activation: no slopes are made of it. Empty: none is."""
        graph = Graph()
        own = {s: graph.var(s) for s in act.scalars}
        roots = [p.slope for p in self.products]
        found = substitute(
            self.graph,
            graph,
            roots,
            {},
            act=(
                lambda x: act.build(graph, x, own),
                lambda x, dy: act.build_bwd(graph, x, dy, own),
            ),
        )
        return len(found) == 1 and graph.nodes[found[0]].op == "var" and graph.nodes[found[0]].value

    @property
    def passed(self):
        """The result's gradient that is passed on if the activation is none, whether or not that is among those there are: users' may be like it."""
        graph = Graph()
        found = substitute(
            self.graph,
            graph,
            [p.slope for p in self.products],
            {},
            act=(lambda x: x, lambda x, dy: dy),
        )
        return (
            graph.nodes[found[0]].value
            if len(found) == 1 and graph.nodes[found[0]].op == "var"
            else ""
        )

    @functools.cached_property
    def seams(self):
        """Those of the direction, in the order in which they run."""
        names = {s.name: s for s in self.ins}
        place = {s.name: i for i, s in enumerate(self.outs)}

        def seam(word, makes, roots):
            read = self.graph.variables([self.roots[r] for r in roots])
            if self.by_result and word == "slopes":
                read |= {self.result}
            more = [p.name for p in self.products if p.name in read] + [DOT] * (DOT in read)
            return Seam(word, [*more, *(s for n, s in names.items() if n in read)], makes, roots)

        load = [] if self.plain else [seam("load", [self.factor], [len(self.roots) - 1])]
        if not self.bwd:
            return [*load, seam("store", self.outs, [place[s.name] for s in self.outs])]
        first = len(self.outs)
        apart = [s for s in self.outs if s.kind in ("elem", "row")]
        slopes = seam(
            "slopes",
            [*self.products, *apart],
            [*range(first, first + len(self.products)), *(place[s.name] for s in apart)],
        )
        inputs = [s for s in self.outs if s.kind in ("left", "depth")]
        return [
            *load,
            slopes,
            *([seam("inputs", inputs, [place[s.name] for s in inputs])] if inputs else []),
        ]

    @property
    def form(self):
        return self.op.layout or "nt"

    def levels_of(self, name):
        kinds = {self.tensor_of(s.name): s.kind for s in self.operands}
        kind = kinds.get(name) or kinds.get(name[1:], "elem")
        return ("_batch",) if kind in VECTORS else ("", "_batch")

    @property
    def shaped_by(self):
        """A weight, whose dimensions before its two are the batch's; then the left factor, of which they leave the rows'."""
        return [
            self.tensor_of(self.products[0].weight.name),
            next(s.name for s in self.operands if s.kind == "left"),
        ]

    @property
    def accumulates(self):
        return self.bwd or self.op.own["accumulates"]

    def accumulated(self, stream):
        return stream.role == "sum" if self.bwd else self.accumulates and stream.use == "output"

    @property
    def forward_dtypes(self):
        return self.dtypes[:1]

    @property
    def two_dtypes(self):
        return (
            self.bwd and len(self.family.backward_dtypes(self.op, ("bf16",), ("bf16", "f32"))) > 1
        )

    def per_element(self, stream):
        return int(stream.kind == "elem")

    def below(self, stream):
        return None

    @property
    def work(self):
        """Multiplications and additions of a call, as an expression of the sizes."""
        return f"{2 * len(self.products) * (2 if self.bwd else 1)} * batch * rows * cols * depth"

    def formulas(self, by=False):
        return formulas(self, by)


class Matmul(Family):
    kernel = MatmulKernel
    name = "matmul"
    title = "Products of matrices"
    backends = ("cuda", "c")
    heavy, rounds = True, True
    second = "gradients of weights"
    autocast = "low"
    forms = FORMS
    layouts = ("nn", "tn", "tt")
    sizes = dict.fromkeys(forms, "batch, rows, cols, depth")
    # A left factor as it is may have rows of several dimensions, as torch.nn.Linear's input has.
    axes = {
        form: (
            None,
            {"batch": "before", "rows": "between", "cols": -2, "depth": -1}
            if form[0] == "n"
            else {"batch": "all but three", "rows": -3, "cols": -2, "depth": -1},
        )
        for form in forms
    }
    levels = dict.fromkeys(forms, ("", "_batch"))
    kinds = ("left", "right", "row", "depth", "elem")
    whole = ()
    indices = ("left", "right")  # read by products; which of them all are, check() says
    codes = {"left": 2, "right": 2, "depth": 2} | dict.fromkeys(JOINED.values(), 2)
    fields = ("saved", "layout")
    oracle = "products"
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

    def inside(self, op, rename):
        factor, products = self.products(op)
        given = {name: f"{factor} * {weight}" for name, weight in products.items()}
        joined = {
            name: list(map(rename.name, members))
            for name, members in rename.names(op.own["joined"]).items()
        }
        return op.own | {
            "products": rename.texts(given),
            "load": rename.texts(op.own["load"]),
            "joined": joined,
        }

    def backward_dtypes(self, op, own, dtypes):
        """A 2-byte function has one with the weights' gradients in float32, too, if there are any."""
        wide = (
            "f32" in dtypes
            and own[0] in ("f16", "bf16")
            and any(o.grad and o.kind in SUMS for o in op.operands)
        )
        return [own, *([(*own, "f32")] if wide else [])]

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
            for kind in self.kinds
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
        if op.types != "one":
            raise wrong(
                op, "types", f"is {op.types!r}, but products have one dtype", "leave it out"
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
        """That the gradient reads no product, which nobody would compute again."""
        k = self.kernel(self, op, ("f64",), True)
        lost = {p.name for p in k.products} & k.graph.variables(k.roots)
        if lost:
            name = sorted(lost)[0]
            fix = f'add saved = {{ pre = "{name}" }}, and read that'
            raise wrong(
                op, "saved", f"does not have what the gradient reads of the product `{name}`", fix
            )

    def statements(self, kernel, act, library, by=False):
        return statements(kernel, act, library, by)


FAMILY = Matmul()
