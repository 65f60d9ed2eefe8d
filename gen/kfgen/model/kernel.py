# SPDX-License-Identifier: Apache-2.0
"""Kernels and tensors of any family, without schedules; signature.py has the launchers."""

from dataclasses import dataclass, field, replace

from kfgen.language.emit import counts
from kfgen.language.expr import Graph
from kfgen.language.gradient import substitute
from kfgen.model import contract, limits, names, rename, shapes
from kfgen.model.activation import bwd_reads_x
from kfgen.model.dtypes import DTYPE, FLOAT_DTYPES, INDEX, INT_DTYPES, Dtype
from kfgen.model.entries import SpecError, updated
from kfgen.model.signature import LENGTH, Signature
from kfgen.model.types import ACC, FIRST, INDEX_VARIABLE

# Fields of a tensor that are names of arguments.
TENSOR_NAMES = ("name", "of", "same_as", "unchanged", "place_of", "pages")


@dataclass
class Tensor:
    """One tensor argument of a kernel."""

    name: str
    kind: str  # kind of its family's forms, which give its shape
    dtype: Dtype
    # "in", "inout" (read and then overwritten), "out" or "sum" (a gradient reduced to a row or
    # channel)
    role: str
    use: str  # input, weight, output, saved (forward output that the backward reads), gradient
    var: str  # type variable of its dtype, or "acc"; or the dtype itself
    parts: tuple  # names in expressions, two for "half"
    # Inputs: always; act (if the activation's gradient reads its argument); result (which that
    # gradient reads instead, if given); never.
    reads: str = "always"
    of: str = ""  # gradients: the operand or the output
    same_as: str = ""  # gradients: an earlier, equal gradient whose pointer it may share
    unchanged: str = ""  # gradients: the incoming gradient that it equals
    place_of: str = ""  # an input's next value: the input, whose pointer it may share
    exprs: list = field(default_factory=list)  # tensors that are written: the value of each part
    required: bool = True  # False: may be NULL, as gradients may
    absent: float | str | None = None  # inputs that may be NULL: the default, or its description
    is_list: bool = False  # an array of tensors of the lengths that the call gives
    # Caches whose second extent is the rows of a block: the operand of block numbers, through which
    # the rows of a sequence are found.
    pages: str = ""

    def copied(self, renaming):
        """Returns the tensor with other names (rename.Renaming)."""
        names = {n: renaming.name(getattr(self, n)) for n in TENSOR_NAMES}
        return replace(self, parts=renaming.names(self.parts), **names)

    @property
    def ctype(self):
        return self.dtype.ctype

    @property
    def passes(self):
        """Number of times that a call moves the tensor between memory and processor."""
        return 2 if self.role == "inout" else 1

    @property
    def next_name(self):
        """Name of the value that replaces the tensor's."""
        return updated(self.name)


class Kernel(Signature):
    """One direction of an op for one dtype per type variable and one variant: the expressions and
    tensors. Its schedules `cuda` and `c` say how they are computed.
    """

    # Attributes that hold names of operands, results or scalars, or tables by such names: renamed
    # kernels have others (rename.py). Tensors and graphs are renamed wherever they are.
    name_fields = ("strided", "columns", "scalars", "integers", "result")
    integers = ()  # scalars that are 64-bit integers
    # {scalar: "step" or "seed"} of those that differ in each call of a loop over steps.
    changing = {}
    strided = ()  # tensors with strides, the forward's first; empty: all are contiguous
    layout = ""  # layout of an op over rows
    columns = ()  # names of operands that are column indices
    gathered_inputs = ()  # operands read in one column of each row only
    result = None  # backward: the output that equals the activation's result
    by_result = False  # True: gradients of some activations may read the result, not the inputs
    called = ()  # launchers that its launchers call (steps.Call)
    rounded = False  # True: products may round their factors (dtypes.ROUNDED)
    refuses = False  # True: an empty axis is an error
    runtime_activation = False  # True: the activation is an argument (runtime_activation.py)
    any_strides = False  # True: a kernel for tensors of arbitrary strides
    work = ""  # matrix products: operations of a call, an expression of the sizes
    # Inputs from whose shapes the sizes are inferred; each adds at most one unknown. Empty: any
    # elementwise input suffices.
    shaped_by = ()
    copies = False  # True: elements are copied, without arithmetic
    accumulates = False  # True: a gradient is added to `beta` times the output's old value
    # Contract: the order of sums; the use of the workspace.
    order_note = workspace_note = ""

    def __init__(self, family, op, types, bwd, variant=()):
        self.family, self.op, self.types, self.bwd = family, op, types, bwd
        self.variant = variant  # suffixes of its functions that the entry declares
        self.dtypes = names.words(types)
        self.dtype = self.dtype_of(FIRST)
        self.index_dtype = DTYPE[types.get(INDEX_VARIABLE, INDEX[0])]
        self.words = names.dtype_words(self.dtypes)
        self.name = self._internal("").strip("_")
        self.pattern, self.state_pattern = (self.function("{act}", s) for s in (False, True))
        self.cpu_pattern, self.cpu_state_pattern = (
            self.function("{act}", s, cpu=True) for s in (False, True)
        )
        self.workspace, self.cpu_workspace = (self._companion(cpu) for cpu in (False, True))
        self.dropout = op.dropout
        self.acts = [a for a in op.activations if self.dtype.word in FLOAT_DTYPES or a.ints]
        self.has_act = op.has_act
        self._build()
        self.kinds = {s.kind for s in self.streams}
        self.has_channel = "channel" in self.kinds
        # Elements are independent: any order of traversal gives the same result.
        self.permutable = self.kinds == {"elem"} and self.graph.levels is None and not self.dropout
        self.sums = [s for s in self.outputs if s.role == "sum"]
        self.stores = [s for s in self.outputs if s.role == "out"]
        self.loads = [s for s in self.inputs if not self.is_small(s) and s.reads != "never"]
        self.row_loads = [s for s in self.inputs if self.is_small(s) and s.reads != "never"]
        self._sort()
        self._check_shapes()
        named = [*self.tensor_names, *self.list_names]
        self.limit("operands", "tensors", named, limits.TENSORS)
        sizes = [*self.size_names, *(a.name for a in self.list_arguments)]
        arguments = [*named, *sizes, *self.flat_integers, *self.scalars, *self.betas]
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

    def _check_shapes(self):
        """Raises an error for a shape that layout.h cannot compute."""
        self.limit("operands", "sizes", self.sizes, shapes.SIZES)
        named = shapes.named(self.sizes) if self.sizes else {}
        _, rules = self.family.axes.get(self.form, (None, named))
        for s in self.inputs + self.outputs:
            extents = [shapes.parse(text) for text in self.shape(s)]
            values = [*self.sizes, *self.integers, *([LENGTH] if s.is_list else [])]
            problem = shapes.problem(extents, values, rules)
            if problem:
                fix = f"see `forms` and `axes` of {self.family.name}"
                what = (
                    f'give `{s.name}`, a "{s.kind}", the shape {contract.shape(self, s)}: {problem}'
                )
                raise SpecError(self.op.file, f"op.{self.op.pattern}", "operands", what, fix)

    def function(self, word, state=False, cpu=False):
        """Names the kernel's launcher for an activation."""
        return names.function(
            self.op.pattern, word, self.dtypes, self.bwd, state, cpu, self.variant
        )

    def _internal(self, prefix, cpu=False):
        return names.internal(prefix, self.op.pattern, self.dtypes, self.bwd, cpu, self.variant)

    def dtype_of(self, variable):
        """Returns the dtype of a type variable, of sums ("acc"), or one that is always the same."""
        return self.dtype.acc if variable == ACC else DTYPE[self.types.get(variable, variable)]

    def tensor_of(self, o, use="input", role="in", kind=None, **more):
        """Returns the tensor of an operand, of the operand's kind unless `kind` is another."""
        dtype = self.dtype_of(o.dtype)
        return Tensor(o.name, kind or o.kind, dtype, role, use, o.dtype, o.values, **more)

    def limit(self, field, what, found, most, fix="make two ops of it"):
        """Raises an error if an entry exceeds a limit of core/limits.h."""
        if len(found) > most:
            direction = "the backward" if self.bwd else "the forward"
            problem = f"make {len(found)} {what} of {direction}: {', '.join(found)}"
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
        """Sorts the tensors by use and raises an error if no schedule supports them."""

    @property
    def called_kernels(self):
        """Kernels whose launchers the kernel's launchers call."""
        return [call.kernel for call in self.called]

    @property
    def renamed(self):
        """The same kernel with the names of generated code (rename.py)."""
        if "_renamed" not in self.__dict__:
            self._renamed = rename.kernel(self)
        return self._renamed

    @property
    def variables(self):
        """Type variables of the function's name, without the index dtype."""
        return [v for v in self.op.types.variables if v.name in self.types]

    @property
    def forward_dtypes(self):
        """Dtypes of the forward's name."""
        own = (*self.family.variables(self.op, False), INDEX_VARIABLE)
        return names.words({v: d for v, d in self.types.items() if v in own})

    @property
    def forward_variant(self):
        """Variant of the forward."""
        return tuple(word for word in self.variant if word not in names.OF_GRADIENTS)

    def is_small(self, stream):
        """True if a tensor is smaller than the result."""
        return self.family.kind(stream.kind).small

    def accumulated(self, stream):
        """True if the output is added to `beta` times its old value."""
        return self.accumulates

    @property
    def struct(self):
        """Shape struct of the functions; None: sizes are arguments."""
        return self.family.shape

    @property
    def backends(self):
        """Backends that have the kernel's functions."""
        return self.family.backends

    @property
    def betas(self):
        return ["beta"] if self.accumulates else []

    def below(self, stream):
        """Returns the size that bounds an operand of indices; None for other operands."""
        return self.extents[-1] if stream.name in self.columns else None

    def per_element(self, stream):
        """Returns the tensor's elements per element of the result; 0 for smaller tensors."""
        return 0 if self.is_small(stream) else len(stream.parts)

    def touched(self, stream):
        """Returns the extents of the part of a tensor that a call reads or writes."""
        return self.shape(stream)

    @property
    def header(self):
        """Header that the op's header includes, without .cuh or .h."""
        return self.family.header

    @property
    def needs(self):
        """Ops whose functions the kernel's functions call."""
        return []

    @property
    def masked(self):
        """Extents of dropout's mask, empty without dropout: [size, base, total], names of sizes.

        An extent is total, or size + base where total is 0 or empty. An empty base is 0.
        """
        return [[size, "", ""] for size in self.extents] if self.dropout else []

    @property
    def has_backward(self):
        """False for casts, integers and ops without a differentiable operand."""
        return (
            not self.op.types.converts
            and self.dtypes[0] not in INT_DTYPES
            and any(o.grad for o in self.op.operands)
        )

    @property
    def form(self):
        """Key of the family's `forms`: the layout of the tensors."""
        raise NotImplementedError

    def shape(self, tensor):
        """Returns the tensor's extents as names of sizes."""
        return self.family.forms[self.form][tensor.kind].split(", ")

    @property
    def extents(self):
        """Extents of a tensor of kind "elem"."""
        return self.family.forms[self.form]["elem"].split(", ")

    @property
    def sizes(self):
        given = self.family.sizes.get(self.form)
        return self.extents if given is None else [s for s in given.split(", ") if s]

    @property
    def summed_over(self):
        """Axes over which gradients are reduced, for documentation."""
        return "outer and inner" if self.has_channel else "rows"

    def summed_extents(self, stream):
        """Returns the sizes over which one gradient is reduced."""
        along = {name for text in self.shape(stream) for name in shapes.names(shapes.parse(text))}
        return [extent for extent in self.extents if extent not in along]

    @property
    def act_flavour(self):
        """Flavour of the activation; lp only if nothing is added to its result before rounding."""
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
        """True if the backward with this activation may read the tensor."""
        return stream.reads == "always" or (stream.reads == "act" and bwd_reads_x(act))

    def by(self, act):
        """True if this activation's gradient reads the result, if the call has it."""
        return self.by_result and act.dexpr_out is not None

    def graph_by(self, act=None):
        """Returns (graph, roots) whose activation's gradient reads the result: as a call, or with
        the expression of act.
        """
        graph = Graph(self.graph.levels, self.graph.whole)
        own = {s: graph.var(s) for s in act.scalars} if act else {}

        def gradient(_, dy):
            y = graph.var(self.result)
            return act.build_bwd_out(graph, y, dy, own) if act else graph.add("act_bwd_out", y, dy)

        return graph, substitute(
            self.graph, graph, self.roots, {}, (lambda x: graph.add("act", x), gradient)
        )

    def unread(self, stream, act):
        """True if no call with this activation reads the tensor."""
        return not (self.by(act) if stream.reads == "result" else self.reads(stream, act))

    def instead(self, stream, act):
        """True if the tensor may be missing when the result is given."""
        return self.by(act) and stream.reads == "act"

    @property
    def flops(self):
        return counts(self.graph, self.roots)

    def change(self, stream):
        """Describes what a call does to a tensor that it updates."""
        return f"read, then replaced by {stream.next_name}"

    @property
    def shape_per_name(self):
        """True if the contract writes each tensor's shape behind its name."""
        return bool(self.work)

    @property
    def has_workspace(self):
        """True if the functions have a workspace argument: every backward, and a forward whose sums
        several blocks may share. A better schedule then changes no signature.
        """
        return self.bwd or self.scratch

    @property
    def scratch(self):
        """True if the schedules use the workspace."""
        return bool(self.added)

    @property
    def shared_out(self):
        """True if CUDA uses the workspace for large tensors."""
        return False

    @property
    def unread_scalars(self):
        """Scalars that this direction does not read. A backward has all scalars of its forward, so
        a better derivative changes no signature.
        """
        read = self.graph.variables(self.roots)
        return [s for s in (*self.flat_integers, *self.scalars) if s not in read]

    @property
    def unread_arguments(self):
        """Arguments that the schedules do not read."""
        return self.unread_scalars + (
            [] if self.scratch or self.shared_out else [a.name for a in self.workspace_arguments]
        )

    @property
    def added(self):
        """Gradients that the second stage of a sum computes."""
        return self.sums

    def formulas(self, by):
        """Formulas for contract.formulas."""
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
        """Scalars that this direction reads."""
        read = self.graph.variables(self.roots)
        return [s for s in self.scalars if s in read]

    def store_guard(self, stream):
        if stream.required:
            return ""
        distinct = f" && {stream.name} != {stream.same_as}" if stream.same_as else ""
        return f"if ({stream.name}{distinct}) "

    @property
    def updated(self):
        """Tensors that the kernel reads and then overwrites."""
        return [s for s in self.inputs if s.role == "inout"]

    @property
    def written(self):
        """Tensors that the kernel writes."""
        return self.updated + self.outputs

    @property
    def asks_reads(self):
        """True if only some activations' gradients read some input."""
        return any(s.reads == "act" for s in self.inputs)

    @property
    def contract(self):
        return contract.lines(self)
