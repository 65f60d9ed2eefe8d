# SPDX-License-Identifier: Apache-2.0
"""The family `optimizer`: a step of an optimizer over lists of tensors, in place."""

from kfgen.families.family import FURTHER, Family, wrong
from kfgen.families.optimizer import once
from kfgen.families.optimizer.kernel import FACTOR, FOUND, MASTER, SCALE, VALUE, OptimizerKernel
from kfgen.families.optimizer.norms import NormsKernel
from kfgen.families.optimizer.sums import SumsKernel
from kfgen.language.expr import ExprError, Graph, parse
from kfgen.language.formulas import LIBRARIES, Printer
from kfgen.model import derive
from kfgen.model.entries import Operand, Scalar, updated, usable
from kfgen.model.kinds import ONE, Kind
from kfgen.model.types import ACC, WEIGHTS

MAXIMIZE = "maximize"


class Optimizer(Family):
    kernel = OptimizerKernel
    name = "optimizer"
    title = "Optimizers over lists of tensors"
    forms = {"lists": {"elem": "length", "list": "length", MASTER: "length", VALUE: "1"}}
    sizes = {"lists": ""}
    kinds = (
        Kind("list", whole=True),
        Kind(MASTER, index=True, operand=False),
        Kind(VALUE, ONE, vectors=False, small=True, index=True),
    )
    in_place = ("list", VALUE)
    lists = ("list", MASTER)
    fields = ("updates",)
    roles = (WEIGHTS,)
    integers = True
    names = (MASTER, SCALE, FOUND, FACTOR, MAXIMIZE)

    def dtypes(self, kind, grad):
        return (ACC,) if kind == VALUE else (FURTHER, ACC)

    def absent(self, kind):
        return kind == VALUE

    def check_operands(self, f, operands):
        for o in operands:
            if o.kind == VALUE and o.dtype != ACC:
                raise f.error("operands", f"{o.name} has the dtype {o.dtype!r}", 'write "acc"')

    # ---- fields of an entry

    def own_fields(self, f, op):
        found = {
            "once": f.get("once", dict, {}, what='{ scale = "1 - pow(beta, step)" }'),
            "gradient": f.get("gradient", str, "", what='"the list of gradients"'),
            "master": f.get("master", str, "", what='"the list of parameters"'),
            "device": f.get("device", (list, dict), [], what='["lr", "step"]'),
            "sums": f.get("sums", dict, {}, what='{ total = "x * x" }'),
            "tensor_sums": f.get("tensor_sums", dict, {}, what='{ total = "param * param" }'),
            "tensor_once": f.get("tensor_once", dict, {}, what='{ norm = "sqrt(total)" }'),
            "stochastic": f.get("stochastic", (str, dict), "", what='"step"'),
        }
        odd = [n for n in found["device"] if n not in op.scalars]
        if isinstance(found["device"], list) and odd:
            known = ", ".join(op.scalars)
            raise f.error("device", f"has {odd[0]!r}", f"name some of the scalars: {known}")
        for field in ("once", "sums", "tensor_sums", "tensor_once"):
            self._check_names(f, op, field, found[field])
        kinds = {o.kind for o in op.operands if o.name in op.updates}
        if kinds and kinds != ({VALUE} if found["sums"] else {"list"}):
            fix = "with `sums` numbers are updated, without it lists"
            raise f.error("updates", f"has operands of kind {', '.join(sorted(kinds))}", fix)
        lists = [o.name for o in op.operands if o.kind == "list"]
        for field in ("gradient", "master"):
            if found[field] and found[field] not in lists:
                raise f.error(field, f"is {found[field]!r}", f"name one of: {', '.join(lists)}")
        if isinstance(found["stochastic"], dict):
            self._add_scalars(f, op, {"seed": Scalar(0, 0), "offset": Scalar(0, 0)})
        elif found["stochastic"] and found["stochastic"] not in self.whole_numbers_of(op, found):
            known = ", ".join(op.integers)
            raise f.error("stochastic", f"is {found['stochastic']!r}", f"name one of: {known}")
        if found["master"]:
            if found["master"] not in op.updates:
                raise f.error("master", f"`{found['master']}` has no update", "leave it out")
        if found["gradient"]:
            self._add_scaling(f, op, found)
        return found

    def _check_names(self, f, op, field, texts):
        taken = {*op.scalars, *op.updates, *map(updated, op.updates)}
        taken |= {o.name for o in op.operands}
        for name, text in texts.items():
            if not isinstance(text, str):
                raise f.error(field, f"{name} is {text!r}", "give it an expression, in quotes")
            if not usable(name) or name in taken or name in self.taken:
                raise f.error(field, f"the name `{name}` cannot be used", "choose another name")

    def _add_scaling(self, f, op, found):
        """Adds the arguments by which a call scales, negates or ignores the gradients."""
        op.operands.append(Operand(SCALE, VALUE, ACC, grad=False, absent=1.0))
        op.operands.append(Operand(FOUND, VALUE, ACC, grad=False, absent=0.0))
        self._add_scalars(f, op, {MAXIMIZE: Scalar(0, 0, 0, 1)})
        found["once"] = found["once"] | {FACTOR: f"where({MAXIMIZE} > 0, -1, 1) / {SCALE}"}

    def _add_scalars(self, f, op, scalars):
        """Adds integers to an entry's scalars."""
        for name, scalar in scalars.items():
            op.scalar_info[name], op.scalars[name] = scalar, scalar.value
        op.integers = (*op.integers, *scalars)

    def made(self, op, data):
        """Entries that an entry makes: `_device`, which reads some scalars from device memory, and
        `_stochastic`, which rounds bfloat16 results at random.
        """
        device, _stochastic = data.get("device"), data.get("stochastic")
        if isinstance(device, dict):
            return {}
        return self._on_device(op, data) | self._at_random(op, data)

    def _at_random(self, op, data):
        step = data.get("stochastic")
        if not isinstance(step, str) or not step:
            return {}
        types = {"T": ["bf16"]} | {v: m for v, m in data.get("types", {}).items() if v != "T"}
        made = {
            "stochastic": {"advance": step},
            "brief": f"{op.brief}; bfloat16 results are rounded at random",
            "types": types,
        }
        kept = {name: value for name, value in data.items() if name != "master"}
        return {f"{op.pattern}_stochastic": kept | made}

    def _on_device(self, op, data):
        device = data.get("device")
        if not device:
            return {}
        scalars = data.get("scalars", {})
        operands = {name: {"kind": VALUE, "dtype": ACC} for name in device}
        return {
            f"{op.pattern}_device": data
            | {
                "device": {name: scalars[name] for name in device},
                "brief": f"{op.brief}; {' and '.join(device)} from device memory",
                "scalars": {n: s for n, s in scalars.items() if n not in device},
                "operands": data["operands"] | operands,
            }
        }

    def named(self, op):
        own = op.own
        return (*own["once"], *own["sums"], *own["tensor_sums"], *own["tensor_once"], MASTER)

    # ---- graphs

    def whole_numbers(self, op):
        """Scalars that are integers, in device memory or not."""
        return self.whole_numbers_of(op, op.own)

    def whole_numbers_of(self, op, own):
        device = own["device"]
        given = device.items() if isinstance(device, dict) else ()
        kept = [n for n, s in given if isinstance(s, dict) and s.get("kind") == "int"]
        return [*op.integers, *kept]

    def once(self, op):
        """Returns (graph, {name that expressions read: node}) of a call's values and of the values
        of each tensor; with sums, also the next values of the numbers.
        """
        numbers = [o.name for o in op.operands if o.kind == VALUE]
        texts = op.own["once"] | op.own["tensor_once"]
        read = [*op.scalars, *numbers, *op.own["sums"], *op.own["tensor_sums"]]
        if op.own["sums"]:
            texts = texts | {updated(name): text for name, text in op.updates.items()}
        return once.build(texts, read, self.whole_numbers(op))

    def graph(self, op):
        graph = Graph()
        env = {o.name: graph.var(o.name) for o in op.operands if o.kind == "list"}
        whole = self.whole_numbers(op)
        env |= {name: graph.var(name) for name in self.once(op)[1] if name not in whole}
        own = {updated(name): text for name, text in op.updates.items()}
        if op.own["sums"]:
            return self._graph_of_sums(op, graph, env)
        if op.own["gradient"]:
            name = op.own["gradient"]
            env[name] = graph.add("mul", env[name], graph.var(FACTOR))
        for name in derive.in_order(own):
            try:
                env[name] = parse(graph, own[name], env)
            except ExprError as e:
                e.field = "updates"
                raise
        return graph, env, {}

    def _graph_of_sums(self, op, graph, env):
        """The graph of the values of elements that are added up."""
        lists = {o.name: env[o.name] for o in op.operands if o.kind == "list"}
        for name, text in op.own["sums"].items():
            try:
                env[name] = parse(graph, text, lists)
            except ExprError as e:
                e.field = "sums"
                raise
        zero = graph.const(0)  # numbers are no values of elements
        return graph, env | {updated(name): zero for name in op.updates}, {}

    def graph_after(self, op, kept):
        """Begins the graph of expressions that read the next values of the lists `kept` from
        memory: (graph, {readable name: node}).
        """
        graph, whole = Graph(), self.whole_numbers(op)
        names = [o.name for o in op.operands if o.kind == "list" and o.name not in kept]
        names += [*map(updated, kept), *(n for n in self.once(op)[1] if n not in whole)]
        env = {name: graph.var(name) for name in names}
        if op.own["gradient"]:
            name = op.own["gradient"]
            env[name] = graph.add("mul", env[name], graph.var(FACTOR))
        return graph, env

    def loaded(self, op):
        return (*op.own["sums"], *op.own["tensor_sums"])

    def forward(self, op, types, variant=()):
        own = op.own
        kernel = (
            SumsKernel if own["sums"] else NormsKernel if own["tensor_sums"] else OptimizerKernel
        )
        return kernel(self, op, types, False, variant)

    def check(self, op, graph, env, outputs):
        if outputs or op.has_act or not op.updates:
            raise wrong(op, "expr", "has a result", "write updates")

    # ---- statements and oracle

    def statements(self, k, act, library, by=False):
        if k.is_sum:
            return self._statements_of_sums(k, library)
        written = [s for s in k.updated if s.kind != MASTER]
        lines = [f"{s.name} = {s.name} if master is None else master" for s, m in k.read_lists if m]
        lines += self._values(k, k.call_values, library)
        for graph, results in k.passes:
            sums = [name for name in results if name in k.sums_of]
            lines += self._results(k, graph, results, sums, library)
            lines += self._values(k, k.tensor_values, library) if sums else []
        if any(s.name == FOUND for s in k.device_numbers):
            lines += [f"{s.next_name} = {s.name} if {FOUND} else {s.next_name}" for s in written]
        lines += [f"{s.name} = {s.next_name}" for s in written]
        return lines + [f"{MASTER} = {k.master_of}"] * bool(k.master_of)

    def _values(self, k, names, library):
        """Statements of values of a call or a tensor."""
        nodes = {n: k.once[n] for n in names if n not in k.scalars}
        return once.statements(k.once_graph, nodes, library)

    def _results(self, k, graph, results, sums, library):
        """Statements of {result: node}; of those in `sums`, added up over the elements."""
        lib = LIBRARIES[library]
        axes = dict.fromkeys(graph.variables([*results.values()]))
        axes |= {n: frozenset((0,)) for s in k.lists for n in (s.name, s.next_name)}
        printer = Printer(lib, None, graph, axes, None)
        printer.run([*results.values()])
        text = {name: printer.at(node) for name, node in results.items()}
        text |= {name: f"{lib.name}.sum({text[name]})" for name in sums}
        return printer.lines + [f"{name} = {of}" for name, of in text.items()]

    def _statements_of_sums(self, k, library):
        nodes = dict(zip(k.sums_of, k.roots))
        lines = self._results(k, k.graph, nodes, k.sums_of, library)
        lines += self._values(k, [s.next_name for s in k.updated], library)
        return lines + [f"{s.name} = {s.next_name}" for s in k.updated]

    def reference(self, op, act):
        from kfgen.families.optimizer.reference import OptimizerReference

        return OptimizerReference(self, op, act)


FAMILY = Optimizer()
