# SPDX-License-Identifier: Apache-2.0
"""The interface of a family. These are the defaults."""

import functools

from kfgen.language import formulas
from kfgen.model import kinds
from kfgen.model.dtypes import DTYPES
from kfgen.model.entries import SpecError
from kfgen.model.types import GRADIENTS

FURTHER = "further"  # stands for the type variables of an entry besides T


class Family:
    name = ""
    title = ""  # title of its page
    kernel = None  # class of its kernels
    templates = None  # folder of its templates; None: kf's
    backends = ("cuda", "c")
    architecture = 75  # minimum compute capability
    # Shapes of the tensors: {form: {kind of a tensor: shape as names of sizes}}. The sizes of a
    # call are the shape of "elem", or those given by {form: sizes}.
    forms = {}
    sizes = {}
    # Struct of its functions' sizes and options (shape_structs.py); None: sizes are arguments.
    shape = None
    # How tensors of any rank determine the sizes: {form: (default axis or None, {size: rule})}.
    # shapes.py has the rules.
    axes = {}
    # {form: suffixes of a tensor's stride fields}, innermost first. A contiguous dimension has
    # none.
    levels = {}
    kinds = ()  # kinds of its tensors (kinds.Kind)
    lists = ()  # kinds of operands that are lists of tensors of the lengths of a call
    # Kinds of operands that `updates` may name: functions read and then overwrite these. An entry
    # with such operands has no gradient, and may have no results.
    in_place = ()
    # {kind of caches: kind of their tables of block numbers}. The first two extents of a cache are
    # the blocks and the rows of a block.
    paged = {}
    names = ()  # public names of its functions alone, which operands may not have
    integers = False  # True: scalars may be 64-bit integers
    types = "one"  # table of an entry without `types` (model/types.py)
    roles = ()  # roles of type variables besides T: WEIGHTS, RESULTS, SAVED, GRADIENTS
    converts = False  # True: `types` may be "pairs"
    summed = ()  # kinds of weights whose gradients have the variable of GRADIENTS
    conditions = False  # True: results may be conditions, of dtype "u8"
    storage = ()  # dtypes besides float ones that variables may stand for
    narrower = False  # True: variables may stand for narrower dtypes than T
    fields = ()  # optional fields: saved, updates, grads, layout, empty, reduced, ints
    layouts = ()  # values of `layout`, besides the default
    variants = ()  # values of `variants`: suffixes that its functions may exist with
    runtime_activation = False  # True: its functions also exist with a run-time activation
    reduced_by = ""  # family of the ops that `reduced` makes
    heavy = False  # True: kernels compile slowly; of kf's activations only the `heavy` ones apply
    autocast = ""  # autocast policy (manifest.autocast), if expressions do not imply it
    # Decisions of frontends, which the manifest hands on.
    reduces = False  # True: reduces over an axis that the results lack
    axis_may_be_none = False  # True: without an axis, all dimensions are one axis
    decomposes = False  # True: a compiler of PyTorch may see the statements instead of the op
    # Forms whose functions frontends may call with the dimensions in any order, but for the axis:
    # the results are the same elements. A dropout's mask is then another one.
    any_order = ()
    # {form: rules of tensors whose channels, the axis, are the last dimension}, where `axes` has no
    # rules for them.
    channels_last = {}
    # {scalar: size}: frontends default such a scalar of an entry to 1 / sqrt(size).
    rsqrt_defaults = {}

    @property
    def header(self):
        """Header that the ops' headers include, without .cuh or .h."""
        if self.templates:
            return f"{self.name}/{self.name}"
        return f"kf/core/{self.name}/{self.name}"

    @functools.cached_property
    def _kinds(self):
        return {kind.name: kind for kind in (*self.kinds, kinds.STATE)}

    def kind(self, name):
        return self._kinds[name]

    @property
    def operand_kinds(self):
        """Names of the kinds that entries may give to operands."""
        return tuple(kind.name for kind in self.kinds if kind.operand)

    @property
    def taken(self):
        """Names that operands, scalars and results may not have: `names`, and the fields of the
        shape struct, which are sizes of statements and arguments of frontends.
        """
        return (*self.names, *(self.shape.names if self.shape else ()))

    @property
    def whole(self):
        """Names of the kinds of the result's shape."""
        return tuple(kind.name for kind in self.kinds if kind.whole)

    @property
    def parts(self):
        """{kind with several values per element: how many}."""
        return {kind.name: kind.parts for kind in self.kinds if kind.parts}

    @property
    def indices(self):
        """Names of the kinds of operands that expressions do not read."""
        return tuple(kind.name for kind in self.kinds if kind.index)

    @property
    def row_kinds(self):
        """Names of the kinds with one value per row."""
        return tuple(kind.name for kind in self.kinds if kind.per_row)

    def own_fields(self, f, op):
        """Reads {name: value} of the fields that only this family has."""
        return {}

    def made(self, op, data):
        """Returns {name: fields} of the further ops that an entry makes. data: its fields."""
        return {}

    def loaded(self, op):
        """Names defined by expressions besides outputs and saved values."""
        return ()

    def named(self, op):
        """Further names in an entry, which only expressions read."""
        return ()

    def made_of(self, op):
        """Names of entries whose functions the op's functions call."""
        return ()

    def renamed(self, op, renaming):
        """Returns the fields of own_fields; those that schedules read have the names of generated
        code (rename.Renaming).
        """
        return op.own

    def variables(self, op, bwd):
        """Names of the type variables that the functions of a direction have."""
        wide = {o.grad_dtype for o in op.operands if o.grad} if bwd else set()
        return [v.name for v in op.types.variables if v.of != GRADIENTS or v.name in wide]

    def forward_types(self, op, dtypes=DTYPES):
        """Returns {type variable: dtype} of each forward, restricted to `dtypes`."""
        return op.types.functions(self.variables(op, False), op.indexed, dtypes)

    def backward_types(self, op, own, dtypes=DTYPES):
        """Returns the same of the backwards of the forward `own`, first the one with the fewest
        dtypes.
        """
        found = op.types.functions(self.variables(op, True), op.indexed, dtypes)
        return [types for types in found if types | own == types]

    def dtypes(self, kind, grad):
        """Dtypes of an operand besides "T"; FURTHER: the entry's other type variables."""
        return ()

    def absent(self, kind):
        """True if an operand may be NULL, with a default value."""
        return False

    def check_operands(self, f, operands):
        """Raises an error for incompatible kinds."""

    def graph(self, op):
        """Returns (graph, {readable or saved name: node}, {output: node})."""
        raise NotImplementedError

    def check(self, op, graph, env, outputs):
        """Raises an error for expressions without a schedule."""

    def check_gradients(self, op):
        """Raises an error for invalid gradients."""

    def statements(self, kernel, act, library, by=False):
        """Returns a function as statements of a library (formulas.py). by: the gradient reads the
        activation's result.
        """
        return formulas.statements(kernel, act, library, by)

    def reference(self, op, act):
        """Returns the float64 oracle of an op with one activation: its inputs, values, gradients
        and error bounds (reference.py). It needs NumPy, which rendering does not.
        """
        from kfgen.families.reference import Reference

        return Reference(self, op, act)

    def forward(self, op, types, variant=()):
        return self.kernel(self, op, types, False, variant)

    def backward(self, op, types, variant=()):
        return self.kernel(self, op, types, True, variant)


def wrong(op, field, problem, fix):
    return SpecError(op.file, f"op.{op.pattern}", field, problem, fix)


def describe(operands):
    """Describes operands in an error message, with dtypes, since only a dtype may be wrong."""
    return ", ".join(
        f'{o.name} = {{ kind = "{o.kind}", dtype = "{o.dtype}", grad = {str(o.grad).lower()} }}'
        for o in operands
    )


def one_broadcast(f, operands):
    """Raises an error for kinds that broadcast in different ways."""
    found = {o.kind for o in operands}
    others = {"row", "half", "per_row", "shared"}
    for kind, not_with in (("channel", others), ("group", others | {"channel"})):
        if kind in found and found & not_with:
            last = ' or "shared"' if kind == "channel" else ', "shared" or "channel"'
            raise f.error(
                "operands",
                f'mixes "{kind}" with "row", "half", "per_row"{last}',
                "an op has one kind of broadcast",
            )
