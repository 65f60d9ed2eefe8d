# SPDX-License-Identifier: Apache-2.0
"""What the generator asks of a family. What stands here is the answer of one that has nothing special."""

from kfgen.language import formulas
from kfgen.model.entries import SpecError


class Family:
    name = ""
    title = ""  # of its page
    kernel = None  # the class of its kernels
    templates = None  # the folder of its templates, where they are not among kf's
    backends = ("cuda", "c")
    architecture = 75  # the least of CUDA's that it runs on
    # How the tensors of a call lie: {form: {kind of a tensor: its shape, in the names of sizes}}; those of an "elem" are the call's sizes,
    # but in forms of `sizes`: {form: the sizes}.
    forms = {}
    sizes = {}
    # How a tensor of any number of dimensions becomes the sizes of an "elem": {form: (which dimension is the axis where nobody says, None if there
    # is no axis, {size: what it is the product of})}: "all" dimensions; those "before" the axis, the "axis" itself, those "after" it; the axis in
    # "groups", which divide it; "all but three", and a dimension from the last on, -1; "one", of nothing. Where it takes several tensors to know the
    # sizes (a kernel's `shaped_by`), dimensions are those of all sizes one after the other, and those from the axis to the last two are "between".
    axes = {}
    split = {}  # extents that results of a row differ along in part: {form: {extent: what it is the product of}}
    row_kinds = ()  # kinds of what is one per row
    # Strides of a tensor of such a form, the innermost first: what each adds to its name. What lies side by side has none.
    levels = {}
    kinds = ()  # of operands, as a spec names them
    whole = (
        "elem",
        "half",
    )  # those that have the shape of a result, one of which an entry must have if it may
    parts = {
        "half": 2
    }  # {kind that has several values for an element, which the operand's `parts` name: how many}
    indices = ()  # those that say where others are read, so that no expression reads them
    codes = {}  # what its own kinds are to core/check.h: 0 may be read and written in place, 2 may not, 4 needs no vectors
    in_rows = {}  # kinds of its own, as kinds that an op over rows has: what `kfgen check` draws for them
    oracle = "elements"  # what `kfgen check` compares its entries with: elements one by one, or rows or products as a whole
    names = ()  # public names that only its functions have: refused to operands
    integers = False  # whether scalars may be whole numbers of 64 bits
    types = ()  # of its entries, beside "one", "pairs" and "weights"
    fields = ()  # of its entries, beside those that all have: saved, updates, grads, layout, empty, reduced, ints
    layouts = ()  # that its entries may name, beside the one that is meant where they name none
    rounds = (
        False  # whether there are functions that round the factors of its products (dtypes.ROUNDED)
    )
    runtime_activation = (
        False  # whether its functions are also there with the activation as an argument
    )
    heavy = False  # whether its kernels take long to compile: of kf's activations it has those that say so
    autocast = ""  # what a framework that chooses dtypes gives it, where that does not follow from an op's expressions: manifest.autocast
    second = ""  # of a function with two dtypes that no entry speaks of: what the second one is of

    @property
    def header(self):
        """What its ops' headers include, without .cuh or .h."""
        if self.templates:
            return f"{self.name}/{self.name}"
        return f"kf/core/{self.name}/{self.name}"

    def own_fields(self, f, op):
        """Of an entry: {name: value} of the fields that no other family has."""
        return {}

    def loaded(self, op):
        """What its expressions name beside results and what is saved."""
        return ()

    def named(self, op):
        """What else its entries name: what only expressions read."""
        return ()

    def made_of(self, op):
        """The names of entries whose functions its own ones call."""
        return ()

    def renamed(self, op, renaming):
        """An entry's fields that no other family has, with all names as the generated code has them (rename.Renaming)."""
        return op.own

    def backward_dtypes(self, op, own, dtypes):
        """Those of the gradients of a forward with its own ones, of `dtypes`."""
        return [own]

    def dtypes(self, kind, grad):
        """Of an operand, beside "T"."""
        return ()

    def absent(self, kind):
        """Whether an operand may be NULL, and stand for a number."""
        return False

    def check_operands(self, f, operands):
        """Complains of kinds that do not go together."""

    def graph(self, op):
        """(graph, {name: node} of what expressions read and of what is saved, {output: node})."""
        raise NotImplementedError

    def check(self, op, graph, env, outputs):
        """Complains of expressions that it has no schedule for."""

    def check_gradients(self, op):
        """Complains of gradients that cannot be."""

    def statements(self, kernel, act, library, by=False):
        """What a function computes, in a library's words (formulas.py); by: with the activation's gradient by its result."""
        return formulas.statements(kernel, act, library, by)

    def forward(self, op, dtypes):
        return self.kernel(self, op, dtypes, False)

    def backward(self, op, dtypes):
        return self.kernel(self, op, dtypes, True)


def wrong(op, field, problem, fix):
    return SpecError(op.file, f"op.{op.pattern}", field, problem, fix)


def describe(operands):
    """What an entry's operands are, for a complaint: kinds that are right do not say that a dtype is wrong."""
    return ", ".join(
        f'{o.name} = {{ kind = "{o.kind}", dtype = "{o.dtype}", grad = {str(o.grad).lower()} }}'
        for o in operands
    )


def one_broadcast(f, operands):
    """A complaint about kinds that are broadcast in different ways."""
    kinds = {o.kind for o in operands}
    others = {"row", "half", "per_row", "shared"}
    for kind, not_with in (("channel", others), ("group", others | {"channel"})):
        if kind in kinds and kinds & not_with:
            last = ' or "shared"' if kind == "channel" else ', "shared" or "channel"'
            raise f.error(
                "operands",
                f'mixes "{kind}" with "row", "half", "per_row"{last}',
                "an op has one kind of broadcast",
            )
