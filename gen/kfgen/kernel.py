# SPDX-License-Identifier: Apache-2.0
"""What a kernel, its launchers, its tensors and arguments are, whatever its family; no schedule."""

from dataclasses import dataclass, field

from kfgen import contract, limits, names
from kfgen.activation import bwd_reads_x
from kfgen.dtypes import DTYPE, FLOAT_DTYPES, INDEX, INT_DTYPES, Dtype
from kfgen.emit import counts
from kfgen.entries import SpecError
from kfgen.expr import Graph, substitute

WEIGHTS = ("row", "channel", "group")  # kinds of operands that all rows or all batches share: their gradients are added up
ROWS = ("row", "channel", "per_row", "per_plane", "per_query", "per_group", "per_channel", "shared", "group")  # what is smaller than the result


@dataclass
class Tensor:
    """One tensor argument of a kernel."""

    name: str
    kind: str  # of its family's forms, which have its shape
    dtype: Dtype
    role: str  # in, out, sum (a gradient reduced to a row or channel)
    use: str  # what it is to callers: input, weight, output, saved (of the forward, for the backward), gradient
    var: str  # the type variable that its dtype is: T, U, acc; or the dtype itself
    parts: tuple  # the names expressions use, two for "half"
    # Of inputs: always; act (if the activation's gradient reads its argument); result (that it reads instead, where it is given); never.
    reads: str = "always"
    of: str = ""  # of gradients: the operand or the output
    same_as: str = ""  # of gradients: an earlier gradient that is proven equal; they may be one pointer
    place_of: str = ""  # of an input's next value: the input, in whose place it may be
    exprs: list = field(default_factory=list)  # of outputs: the value of each part
    required: bool = True  # forward arguments; gradients may be NULL
    absent: float | str | None = None  # of inputs that may be NULL: the value that stands for them, or what, in words

    @property
    def ctype(self):
        return self.dtype.ctype

    @property
    def is_row(self):
        return self.kind in ROWS


@dataclass
class Launcher:
    kernel: "Kernel"
    act: object
    state: bool

    @property
    def name(self):
        return names.function(self.kernel.op.pattern, self.act.name, self.kernel.dtypes, self.kernel.bwd, self.state)

    @property
    def cpu_name(self):
        return names.function(self.kernel.op.pattern, self.act.name, self.kernel.dtypes, self.kernel.bwd, self.state, cpu=True)

    @property
    def workspace(self):
        return names.workspace(self.name)

    @property
    def cpu_workspace(self):
        return names.workspace(self.cpu_name)

    @property
    def arguments(self):
        """The public signature but for the stream, in order."""
        k, scalar = self.kernel, self.kernel.scalar_ctype
        found = k.tensor_arguments + [Argument("int64_t ", s, "size") for s in k.sizes]
        found += k.stride_arguments + [Argument("int64_t ", s, "integer") for s in k.integers]
        found += [Argument(f"{scalar} ", s, "scalar") for s in k.scalars]
        found += [Argument(f"{scalar} ", s, "act_scalar") for s in self.act.scalars]
        found += k.choice_arguments
        found += [Argument(f"{scalar} ", s, "beta") for s in k.betas]
        if k.dropout:
            found.append(Argument(f"{scalar} ", "p", "probability"))
            found += STATE if self.state else [Argument("uint64_t ", "seed", "seed"), Argument("uint64_t ", "offset", "offset")]
        return found + k.workspace_arguments

    @property
    def cuda_parameters(self):
        return ", ".join([f"{a.ctype}{a.name}" for a in self.arguments] + ["cudaStream_t stream"])

    @property
    def cpu_parameters(self):
        return ", ".join(f"{a.ctype}{a.name}" for a in self.arguments)

    @property
    def cpu_types(self):
        return ", ".join(a.ctype.strip() for a in self.arguments)

    @property
    def run_arguments(self):
        """Of the run function; an activation without scalars leaves out the last one: 2,400 launchers are parsed faster."""
        k = self.kernel
        found = [a.name for a in k.tensor_arguments] + k.sizes + [a.name for a in k.stride_arguments] + list(k.integers) + k.scalars
        found += k.betas
        if k.dropout:
            found += ["p", "0", "offset_add", "seed", "offset"] if self.state else ["p", "seed", "offset", "nullptr", "nullptr"]
        found += [a.name for a in k.workspace_arguments] + ["stream"]
        found += [f"{{{{{', '.join(self.act.scalars)}}}}}"] if self.act.scalars else []
        return ", ".join(found + [a.name for a in k.choice_arguments])

    @property
    def scalar_values(self):
        return self.kernel.scalars + list(self.act.scalars) + self.kernel.betas

    @property
    def cpu_dropout_arguments(self):
        if not self.kernel.dropout:
            return []
        return ["p", "0", "offset_add", "seed", "offset", "1"] if self.state else ["p", "seed", "offset", "NULL", "NULL", "0"]


@dataclass(frozen=True)
class Argument:
    ctype: str  # as it stands before the name
    name: str
    # in, out, size, strides, integer, scalar, act_scalar, activation, activation_scalars, probability, seed, offset, seed_at, offset_at, offset_add,
    # workspace
    role: str


# Of a `_state` launcher: the offset that is used is *offset + offset_add, so that two dropouts of one graph differ.
STATE = [Argument("const uint64_t *", "seed", "seed_at"), Argument("const uint64_t *", "offset", "offset_at"),
         Argument("uint64_t ", "offset_add", "offset_add")]


class Kernel:
    """One direction of an op for its dtypes: what is computed, and of which tensors. How, its schedules say: `cuda` and `c`."""

    integers = ()  # scalars that are whole numbers of 64 bits
    strided = ()  # the op's tensors that have strides, those of its forward first; none: all is dense
    layout = ""  # how the rows of an op over rows lie
    columns = ()  # names of operands that are numbers of columns
    picked = ()  # operands of which nothing is read but a row's value in one column
    result = None  # of a backward: the output that is the activation's result as it is
    by_result = False  # whether an activation's gradient may be that of the result, which makes inputs unnecessary
    refuses = False  # whether an axis without elements is an error
    chosen = False  # whether its activation is an argument (chosen.py)
    work = ""  # of a product: its operations in a call, as an expression of the sizes
    shaped_by = ()  # inputs that say the sizes between them, each all that those before leave but one; empty: one of the elements' shape does
    accumulates = False  # whether a gradient is added to `beta` times what is there
    order_note = workspace_note = ""  # of the contract: what the order of a sum follows from; when there are no bytes of workspace

    def __init__(self, family, op, dtypes, bwd):
        self.family, self.op, self.dtypes, self.bwd = family, op, dtypes, bwd
        self.dtype = DTYPE[dtypes[0]]
        self.index_dtype = DTYPE[dtypes[-1] if op.indexed and dtypes[-1] in INT_DTYPES else INDEX[0]]
        self.second = DTYPE[next(d for d in reversed(dtypes) if not (op.indexed and d in INT_DTYPES))]
        self.words = names.dtype_words(dtypes)
        self.name = names.internal("", op.pattern, dtypes, bwd).strip("_")
        self.pattern = names.function(op.pattern, "{act}", dtypes, bwd)
        self.cpu_pattern = names.function(op.pattern, "{act}", dtypes, bwd, cpu=True)
        self.state_pattern = names.function(op.pattern, "{act}", dtypes, bwd, True)
        self.cpu_state_pattern = names.function(op.pattern, "{act}", dtypes, bwd, True, cpu=True)
        self.workspace, self.cpu_workspace = (self._twin(cpu) for cpu in (False, True))
        self.dropout = op.dropout
        self.acts = [a for a in op.activations if dtypes[0] in FLOAT_DTYPES or a.ints]
        self.has_act = op.has_act
        self._build()
        self.kinds = {s.kind for s in self.streams}
        self.has_channel = "channel" in self.kinds
        self.sums = [s for s in self.outputs if s.role == "sum"]
        self.stores = [s for s in self.outputs if s.role == "out"]
        self.loads = [s for s in self.inputs if not s.is_row and s.reads != "never"]
        self.row_loads = [s for s in self.inputs if s.is_row and s.reads != "never"]
        self._sort()
        self.limit("operands", "tensors", self.tensor_names, limits.TENSORS)

    def limit(self, field, what, found, most, fix="make two ops of it"):
        """Refuses an entry that makes more of something than what C and CUDA have room for (core/limits.h)."""
        if len(found) > most:
            problem = f"make {len(found)} {what} of {'the backward' if self.bwd else 'the forward'}: {', '.join(found)}"
            raise SpecError(self.op.file, f"op.{self.op.pattern}", field, problem, f"at most {most} are possible: {fix}")

    def _build(self):
        """Sets graph and roots, operands, inputs and outputs, streams, scalars and keeps."""
        raise NotImplementedError

    def _sort(self):
        """Sorts the tensors further by how they are read and written, and refuses what there is no schedule for."""

    @property
    def two_dtypes(self):
        """Whether some of its functions have a second dtype in their names."""
        return self.op.types != "one"

    @property
    def forward_dtypes(self):
        """Those of the forward that it is of."""
        return self.dtypes

    def accumulated(self, stream):
        """Whether a result is added to `beta` times what is there."""
        return self.accumulates

    @property
    def backends(self):
        """Those that have its functions."""
        return self.family.backends

    @property
    def betas(self):
        return ["beta"] if self.accumulates else []

    def below(self, stream):
        """Of an operand of whole numbers that say where another one is read: the size that they must be less than."""
        return self.extents[-1] if stream.name in self.columns else None

    def per_element(self, stream):
        """How many elements of a tensor there are for one of the result: 0 of what is smaller."""
        return 0 if stream.is_row else len(stream.parts)

    def touched(self, stream):
        """The extents of what a call reads or writes of a tensor."""
        return self.shape(stream)

    @property
    def header(self):
        """What its op's header includes, without .cuh or .h."""
        return self.family.header

    @property
    def has_backward(self):
        """A cast, integers, and ops of which no operand has a gradient have none."""
        return self.op.types != "pairs" and self.dtypes[0] not in INT_DTYPES and any(o.grad for o in self.op.operands)

    @property
    def form(self):
        """How its tensors lie: one of its family's forms."""
        raise NotImplementedError

    def shape(self, tensor):
        """Its extents, in the names of sizes."""
        return self.family.forms[self.form][tensor.kind].split(", ")

    @property
    def extents(self):
        """Of a tensor of elements."""
        return self.family.forms[self.form]["elem"].split(", ")

    @property
    def sizes(self):
        given = self.family.sizes.get(self.form)
        return given.split(", ") if given else self.extents

    @property
    def summed_over(self):
        """What a gradient that is reduced is summed over, in words."""
        return "outer and inner" if self.has_channel else "rows"

    @property
    def act_flavour(self):
        """lp only where nothing is added to the activation's result before it is rounded."""
        if self.dtype.flavour != "lp":
            return self.dtype.flavour
        g, tainted = self.graph, set()
        for i in g.reachable(self.roots):
            node = g.nodes[i]
            dirty = [a for a in node.args if a in tainted]
            if node.op in ("act", "act_bwd"):
                tainted.add(i)
            if dirty and node.op not in ("mul", "neg", "where"):
                return "f32"
            if dirty:
                tainted.add(i)
        return "lp"

    @property
    def flavour(self):
        return "f32" if self.dtype.flavour == "lp" else self.dtype.flavour

    def reads(self, stream, act):
        """Whether the backward of this activation reads the stream at all."""
        return stream.reads == "always" or (stream.reads == "act" and bwd_reads_x(act))

    def by(self, act):
        """Whether this activation's gradient is that of the result, if the call has it."""
        return self.by_result and act.dexpr_out is not None

    def graph_by(self, act=None):
        """(a graph, its roots) with the activation's gradient by the result: a call of it, or act's own expression."""
        graph = Graph(self.graph.levels, self.graph.whole)
        own = {s: graph.var(s) for s in act.scalars} if act else {}

        def gradient(_, dy):
            y = graph.var(self.result)
            return act.build_bwd_out(graph, y, dy, own) if act else graph.add("act_bwd_out", y, dy)

        return graph, substitute(self.graph, graph, self.roots, {}, (lambda x: graph.add("act", x), gradient))

    def unread(self, stream, act):
        """Whether no call with this activation reads the stream."""
        return not (self.by(act) if stream.reads == "result" else self.reads(stream, act))

    def instead(self, stream, act):
        """Whether it need not be there where the result is."""
        return self.by(act) and stream.reads == "act"

    @property
    def launchers(self):
        return [Launcher(self, act, state) for act in self.acts for state in ((False, True) if self.dropout else (False,))]

    @property
    def scalar_ctype(self):
        return "double" if self.dtype.compute == "f64" else "float"

    @property
    def scalar_struct(self):
        return "kfi_scalars_f64" if self.dtype.compute == "f64" else "kfi_scalars_f32"

    @property
    def flops(self):
        return counts(self.graph, self.roots)

    def pattern_text(self, state):
        return f'{state} ? "{self.state_pattern}" : "{self.pattern}"' if self.dropout else f'"{self.pattern}"'

    def cpu_pattern_text(self, state):
        return f'{state} ? "{self.cpu_state_pattern}" : "{self.cpu_pattern}"' if self.dropout else f'"{self.cpu_pattern}"'

    @property
    def tensor_arguments(self):
        return [Argument(f"const {s.ctype} *", s.name, "in") for s in self.inputs] + [
            Argument(f"{s.ctype} *", s.name, "out") for s in self.outputs]

    @property
    def stride_arguments(self):
        return [Argument(f"const {self.stride_struct} *", "strides", "strides")] if self.strided else []

    @property
    def stride_struct(self):
        return names.strides(self.op.pattern)

    @property
    def levels(self):
        """What each number of a tensor's strides adds to its name, the innermost first."""
        return self.family.levels[self.form]

    def levels_of(self, name):
        """Those of one tensor, of either direction."""
        return self.levels

    @property
    def stride_fields(self):
        return [name + level for name in self.strided for level in self.levels_of(name)]

    @property
    def stride_codes(self):
        """Where the numbers of each tensor begin, as core/check.h reads it."""
        first, at = {}, ord("0")
        for name in self.strided:
            first[name], at = chr(at), at + len(self.levels_of(name))
        return "".join(first.get(name, " ") for name in self.tensor_names)

    @property
    def choice_arguments(self):
        """Which activation, and its scalars, where those are arguments."""
        scalars = Argument(f"const {self.scalar_ctype} *", "activation_scalars", "activation_scalars")
        return [Argument("kf_activation_t ", "activation", "activation"), scalars] if self.chosen else []

    @property
    def workspace_arguments(self):
        given = [Argument("void *", "workspace", "workspace"), Argument("size_t ", "workspace_bytes", "workspace")]
        return given if self.has_workspace else []

    @property
    def has_workspace(self):
        """Whether it takes a workspace: every backward, and a forward whose sums blocks may share out. So no better schedule changes a signature."""
        return self.bwd or self.scratch

    @property
    def scratch(self):
        """Whether its schedules use one."""
        return bool(self.added)

    @property
    def unread_scalars(self):
        """Those that this direction does not read: a backward has all of its forward's, so that no better derivative changes a signature."""
        read = self.graph.variables(self.roots)
        return [s for s in (*self.integers, *self.scalars) if s not in read]

    @property
    def unread_arguments(self):
        """What else its schedules do not read."""
        return self.unread_scalars + ([] if self.scratch else [a.name for a in self.workspace_arguments])

    def _twin(self, cpu):
        """The function that says how much workspace is needed, for all activations: that of `none`, or where an op has no such function an
        internal one. The others' are macros."""
        if any(a.name == "none" for a in self.op.activations):
            return names.workspace(names.function(self.op.pattern, "none", self.dtypes, self.bwd, cpu=cpu))
        return names.workspace(names.internal("kfi", self.op.pattern, self.dtypes, self.bwd, cpu))

    @property
    def twins(self):
        """[(macro, function)] for CUDA and for C, of its launchers that have no function of their own."""
        of = [(x.workspace, x.cpu_workspace) for x in self.launchers] if self.has_workspace else []
        return [[(own, real) for own in column if own != real] for column, real in zip(zip(*of), (self.workspace, self.cpu_workspace))] or [[], []]

    @property
    def added(self):
        """Gradients that the second stage adds up."""
        return self.sums

    def formulas(self, by):
        """As contract.formulas has them."""
        return contract.of_elements(self, by)

    @property
    def title(self):
        return self.op.brief + (", gradients" if self.bwd else "")

    @property
    def used_integers(self):
        read = self.graph.variables(self.roots)
        return [s for s in self.integers if s in read]

    @property
    def used_scalars(self):
        """The op's scalars that this direction reads."""
        read = self.graph.variables(self.roots)
        return [s for s in self.scalars if s in read]

    def store_guard(self, stream):
        if stream.required:
            return ""
        return f"if ({stream.name}{f' && {stream.name} != {stream.same_as}' if stream.same_as else ''}) "

    @property
    def lone(self):
        """The launcher, where a kernel can have no other: it is the run function itself."""
        return self.launchers[0] if not self.op.has_act and not self.dropout else None

    @property
    def asks_reads(self):
        """Whether some input is read by the gradients of some activations only."""
        return any(s.reads == "act" for s in self.inputs)

    @property
    def size_parameters(self):
        return ", ".join(f"int64_t {s}" for s in self.sizes)

    @property
    def size_types(self):
        return ", ".join("int64_t" for _ in self.sizes)

    @property
    def tensors(self):
        """Every tensor argument as (name, bytes of an element, kind, use, twin). Uses: in; act, read by the gradients of some activations; result,
        read in place of those; unread; state; out; optional, an output that may be NULL. twin: the earlier tensor, counted from 1, whose place an
        output may share: an output that is proven equal, or the input that it is the next value of."""
        index, found = {}, []
        for s in self.inputs + self.outputs:
            use = {"act": "act", "result": "result", "never": "unread"}.get(s.reads, "in") if s.role == "in" else "out" if s.required else "optional"
            if s.absent is not None and use in ("in", "act"):
                use = {"in": "absent", "act": "act_absent"}[use]
            twin = s.same_as or s.place_of
            found.append((s.name, s.dtype.size, s.kind, use, index[twin] + 1 if twin else 0))
            index[s.name] = len(index)
        return found + self.state_tensors

    @property
    def state_tensors(self):
        return [(name, 8, "one", "state", 0) for name in ("seed", "offset")] if self.dropout else []

    @property
    def tensor_names(self):
        return [t[0] for t in self.tensors]

    def tensor_codes(self, reads, by=""):
        """The tensors as core/check.h reads them: a literal, chosen by what the call asks for. reads, by: whether the activation's gradient
        reads its argument, or the result."""
        # As core/check.h has them, and the flags.
        kinds = {"elem": 0, "half": 1, "row": 2, "channel": 2, "one": 3, "per_row": 4, "per_plane": 5, "per_query": 5, "per_group": 5,
                 "per_channel": 5, "shared": 6, "group": 7} | self.family.codes
        out, nullable, unread = 8, 16, 32

        def codes(reads, from_state):
            uses = {"in": 0, "act": 0 if reads == 1 else nullable | unread, "unread": nullable | unread, "state": 0 if from_state else nullable,
                    "result": 0 if reads == 2 else nullable | unread, "absent": nullable, "act_absent": nullable | (0 if reads == 1 else unread),
                    "out": out, "optional": out | nullable}
            def digit(n):
                return chr(ord("0") + n)

            return '"' + "".join(f"{size}{digit(kinds[kind] | uses[use])}{digit(twin)}" for _, size, kind, use, twin in self.tensors) + '"'

        def chosen(name, asked, of):
            return f"{name} ? {of(True)} : {of(False)}" if asked else of(True)

        def of_state(r):
            return chosen("from_state", self.dropout, lambda s: codes(r, s))

        if self.by_result:
            return f"{by} ? {of_state(2)} : {chosen(reads, True, lambda r: of_state(int(r)))}"
        return chosen(reads, self.asks_reads, lambda r: of_state(int(r)))

    @property
    def contract(self):
        return contract.lines(self)
