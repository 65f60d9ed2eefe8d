# SPDX-License-Identifier: Apache-2.0
"""What a kernel and its tensors are, whatever its family; no schedule. signature.py has its launchers and arguments."""

from dataclasses import dataclass, field

from kfgen.language.emit import counts
from kfgen.language.expr import Graph
from kfgen.language.gradient import substitute
from kfgen.model import contract, limits, names, rename
from kfgen.model.activation import bwd_reads_x
from kfgen.model.dtypes import DTYPE, FLOAT_DTYPES, INDEX, INT_DTYPES, Dtype
from kfgen.model.entries import SpecError
from kfgen.model.signature import Signature

WEIGHTS = (
    "row",
    "channel",
    "group",
)  # kinds of operands that all rows or all batches share: their gradients are added up
# What is smaller than the result.
ROWS = (
    "row",
    "channel",
    "per_row",
    "per_plane",
    "per_query",
    "per_group",
    "per_channel",
    "shared",
    "group",
    "two_rows",
)


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
    same_as: str = (
        ""  # of gradients: an earlier gradient that is proven equal; they may be one pointer
    )
    unchanged: str = ""  # of gradients: the incoming one that it is as it is
    place_of: str = ""  # of an input's next value: the input, in whose place it may be
    exprs: list = field(default_factory=list)  # of outputs: the value of each part
    required: bool = True  # forward arguments; gradients may be NULL
    absent: float | str | None = (
        None  # of inputs that may be NULL: the value that stands for them, or what, in words
    )

    @property
    def ctype(self):
        return self.dtype.ctype

    @property
    def is_row(self):
        return self.kind in ROWS


class Kernel(Signature):
    """One direction of an op for its dtypes: what is computed, and of which tensors. How, its schedules say: `cuda` and `c`."""

    integers = ()  # scalars that are whole numbers of 64 bits
    strided = ()  # the op's tensors that have strides, those of its forward first; none: all is dense
    layout = ""  # how the rows of an op over rows lie
    columns = ()  # names of operands that are numbers of columns
    gathered_inputs = ()  # operands of which nothing is read but a row's value in one column
    result = None  # of a backward: the output that is the activation's result as it is
    by_result = False  # whether an activation's gradient may be that of the result, which makes inputs unnecessary
    parts = ()  # kernels whose launchers its own call
    rounded = False  # whether products may round their factors (dtypes.ROUNDED)
    refuses = False  # whether an axis without elements is an error
    runtime_activation = False  # whether its activation is an argument (runtime_activation.py)
    any_strides = False  # and its tensors lie in any way
    work = ""  # of a product: its operations in a call, as an expression of the sizes
    shaped_by = ()  # inputs that say the sizes between them, each all that those before leave but one; empty: one of the elements' shape does
    accumulates = False  # whether a gradient is added to `beta` times what is there
    order_note = workspace_note = (
        ""  # of the contract: what the order of a sum follows from; when there are no bytes of workspace
    )

    def __init__(self, family, op, dtypes, bwd):
        self.family, self.op, self.dtypes, self.bwd = family, op, dtypes, bwd
        self.dtype = DTYPE[dtypes[0]]
        self.index_dtype = DTYPE[
            dtypes[-1] if op.indexed and dtypes[-1] in INT_DTYPES else INDEX[0]
        ]
        self.second = DTYPE[
            next(d for d in reversed(dtypes) if not (op.indexed and d in INT_DTYPES))
        ]
        self.words = names.dtype_words(dtypes)
        self.name = names.internal("", op.pattern, dtypes, bwd).strip("_")
        self.pattern = names.function(op.pattern, "{act}", dtypes, bwd)
        self.cpu_pattern = names.function(op.pattern, "{act}", dtypes, bwd, cpu=True)
        self.state_pattern = names.function(op.pattern, "{act}", dtypes, bwd, True)
        self.cpu_state_pattern = names.function(op.pattern, "{act}", dtypes, bwd, True, cpu=True)
        self.workspace, self.cpu_workspace = (self._companion(cpu) for cpu in (False, True))
        self.dropout = op.dropout
        self.acts = [a for a in op.activations if self.dtype.word in FLOAT_DTYPES or a.ints]
        self.has_act = op.has_act
        self._build()
        self.kinds = {s.kind for s in self.streams}
        self.has_channel = "channel" in self.kinds
        self.permutable = (
            self.kinds == {"elem"} and self.graph.levels is None and not self.dropout
        )  # elements are visited one by one, in any order
        self.sums = [s for s in self.outputs if s.role == "sum"]
        self.stores = [s for s in self.outputs if s.role == "out"]
        self.loads = [s for s in self.inputs if not s.is_row and s.reads != "never"]
        self.row_loads = [s for s in self.inputs if s.is_row and s.reads != "never"]
        self._sort()
        self.limit("operands", "tensors", self.tensor_names, limits.TENSORS)
        arguments = [*self.tensor_names, *self.sizes, *self.integers, *self.scalars, *self.betas]
        for what, found in (
            ("arguments", arguments),
            (f"fields of {self.stride_struct}", self.stride_fields),
        ):
            twice = next((n for n in found if found.count(n) > 1), None)
            if twice:
                raise SpecError(
                    op.file,
                    f"op.{op.pattern}",
                    "operands",
                    f"`{twice}` is the name of two {what}",
                    "rename one of the two",
                )

    def limit(self, field, what, found, most, fix="make two ops of it"):
        """Refuses an entry that makes more of something than what C and CUDA have room for (core/limits.h)."""
        if len(found) > most:
            problem = f"make {len(found)} {what} of {'the backward' if self.bwd else 'the forward'}: {', '.join(found)}"
            raise SpecError(
                self.op.file,
                f"op.{self.op.pattern}",
                field,
                problem,
                f"at most {most} are possible: {fix}",
            )

    def _build(self):
        """Sets graph and roots, operands, inputs and outputs, streams, scalars and keeps."""
        raise NotImplementedError

    def _sort(self):
        """Sorts the tensors further by how they are read and written, and refuses what there is no schedule for."""

    @property
    def renamed(self):
        """The same kernel as what launchers call has it, with names of its own (rename.py)."""
        if "_renamed" not in self.__dict__:
            self._renamed = rename.kernel(self)
        return self._renamed

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
    def needs(self):
        """The ops whose functions its own ones call."""
        return []

    @property
    def has_backward(self):
        """A cast, integers, and ops of which no operand has a gradient have none."""
        return (
            self.op.types != "pairs"
            and self.dtypes[0] not in INT_DTYPES
            and any(o.grad for o in self.op.operands)
        )

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

    def summed_extents(self, stream):
        """The same of one of them, in the names of sizes."""
        along = {
            extent.rpartition(" * ")[2] for extent in self.shape(stream)
        }  # "2 * cols" goes along cols
        return [extent for extent in self.extents if extent not in along]

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

        return graph, substitute(
            self.graph, graph, self.roots, {}, (lambda x: graph.add("act", x), gradient)
        )

    def unread(self, stream, act):
        """Whether no call with this activation reads the stream."""
        return not (self.by(act) if stream.reads == "result" else self.reads(stream, act))

    def instead(self, stream, act):
        """Whether it need not be there where the result is."""
        return self.by(act) and stream.reads == "act"

    @property
    def flops(self):
        return counts(self.graph, self.roots)

    @property
    def has_workspace(self):
        """Whether it takes a workspace: every backward, and a forward whose sums blocks may share out. So no better schedule changes a signature."""
        return self.bwd or self.scratch

    @property
    def scratch(self):
        """Whether its schedules use one."""
        return bool(self.added)

    @property
    def shared_out(self):
        """Whether its schedules in CUDA use one for large tensors."""
        return False

    @property
    def unread_scalars(self):
        """Those that this direction does not read: a backward has all of its forward's, so that no better derivative changes a signature."""
        read = self.graph.variables(self.roots)
        return [s for s in (*self.integers, *self.scalars) if s not in read]

    @property
    def unread_arguments(self):
        """What else its schedules do not read."""
        return self.unread_scalars + (
            [] if self.scratch or self.shared_out else [a.name for a in self.workspace_arguments]
        )

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
    def asks_reads(self):
        """Whether some input is read by the gradients of some activations only."""
        return any(s.reads == "act" for s in self.inputs)

    @property
    def contract(self):
        return contract.lines(self)
