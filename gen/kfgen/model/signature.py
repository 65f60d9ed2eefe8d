# SPDX-License-Identifier: Apache-2.0
"""Arguments of a kernel's launchers: names, types, order, and their encoding for core/check.h."""

import functools
from dataclasses import dataclass

from kfgen.model import kinds, names, shape_structs, shapes

# Extent of a tensor of a list: its own number of elements.
LENGTH = "length"


@dataclass(frozen=True)
class Argument:
    ctype: str  # text before the name
    name: str
    # One of: in, inout, out, size, shape, lengths, count, strides, integer, scalar,
    # act_scalar, activation, activation_scalars, beta, probability, seed, offset, seed_at,
    # offset_at, offset_add, workspace.
    role: str


# Arguments of a `_state` launcher. The offset used is *offset + offset_add, so that two dropouts of
# one CUDA graph differ.
STATE = [
    Argument("const uint64_t *", "seed", "seed_at"),
    Argument("const uint64_t *", "offset", "offset_at"),
    Argument("uint64_t ", "offset_add", "offset_add"),
]


@dataclass
class Launcher:
    kernel: object
    act: object
    state: bool

    @functools.cached_property
    def name(self):
        return self.kernel.function(self.act.name, self.state)

    @functools.cached_property
    def cpu_name(self):
        return self.kernel.function(self.act.name, self.state, cpu=True)

    @property
    def workspace(self):
        return names.workspace(self.name)

    @property
    def cpu_workspace(self):
        return names.workspace(self.cpu_name)

    @functools.cached_property
    def arguments(self):
        """The public signature in order, without the stream."""
        k, scalar = self.kernel, self.kernel.scalar_ctype
        found = k.tensor_arguments + k.size_arguments + k.list_arguments + k.stride_arguments
        found += [Argument("int64_t ", s, "integer") for s in k.flat_integers]
        found += [Argument(f"{scalar} ", s, "scalar") for s in k.scalars]
        found += [Argument(f"{scalar} ", s, "act_scalar") for s in self.act.scalars]
        found += k.choice_arguments
        found += [Argument(f"{scalar} ", s, "beta") for s in k.betas]
        if k.dropout:
            found.append(Argument(f"{scalar} ", "p", "probability"))
            found += (
                STATE
                if self.state
                else [
                    Argument("uint64_t ", "seed", "seed"),
                    Argument("uint64_t ", "offset", "offset"),
                ]
            )
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
        """Arguments of the run function. Without activation scalars the last one is left out, which
        makes 2,400 launchers parse faster.
        """
        k = self.kernel
        found = (
            [a.name for a in k.tensor_arguments]
            + k.size_names
            + [a.name for a in k.list_arguments]
            + [a.name for a in k.stride_arguments]
            + k.flat_integers
            + k.scalars
        )
        found += k.betas
        if k.dropout:
            found += (
                ["p", "0", "offset_add", "seed", "offset"]
                if self.state
                else ["p", "seed", "offset", "nullptr", "nullptr"]
            )
        found += [a.name for a in k.workspace_arguments] + ["stream"]
        found += [f"{{{{{', '.join(self.act.scalars)}}}}}"] if self.act.scalars else []
        return ", ".join(found + [a.name for a in k.choice_arguments])

    @property
    def act_bounds(self):
        """Bounds of the activation's scalars for core/check.h."""
        return bounds(self.act.scalar_info)

    @property
    def scalar_values(self):
        return self.kernel.scalars + list(self.act.scalars) + self.kernel.betas

    @property
    def cpu_dropout_arguments(self):
        if not self.kernel.dropout:
            return []
        return (
            ["p", "0", "offset_add", "seed", "offset", "1"]
            if self.state
            else ["p", "seed", "offset", "NULL", "NULL", "0"]
        )


def bounds(scalars):
    """Returns initialisers of core/check.h's kfi_bound. scalars: {name: Scalar}, in order."""
    order, found = list(scalars), []
    for at, scalar in enumerate(scalars.values()):
        for sign, bound in ((">", scalar.least), ("<", scalar.most)):
            if isinstance(bound, str):
                found.append(f"{{{at}, '{sign}', {order.index(bound)}, 0}}")
            elif bound is not None:
                found.append(f"{{{at}, '{sign}', -1, {bound!r}}}")
    return found


class Signature:
    """Interface of a kernel to its callers; base of kernel.Kernel."""

    @property
    def bounds(self):
        """Bounds of the op's scalars for core/check.h, by index in `bounded`."""
        return bounds({s: self.op.scalar_info[s] for s in self.bounded})

    @property
    def bounded(self):
        """Scalars and integers, if some of them have bounds."""
        info = self.op.scalar_info
        found = [s for s in (*self.integers, *self.scalars) if s in info]
        return found if bounds({s: info[s] for s in found}) else []

    @property
    def launchers(self):
        """Launchers, cached for the kernel's activations: a copy of a kernel has its own."""
        key = id(self), *map(id, self.acts)
        if self.__dict__.get("_launchers", (None,))[0] != key:
            self._launchers = (
                key,
                [
                    Launcher(self, act, state)
                    for act in self.acts
                    for state in ((False, True) if self.dropout else (False,))
                ],
            )
        return self._launchers[1]

    @property
    def scalar_ctype(self):
        return "double" if self.dtype.compute == "f64" else "float"

    @property
    def scalar_struct(self):
        return "kfi_scalars_f64" if self.dtype.compute == "f64" else "kfi_scalars_f32"

    def pattern_text(self, state):
        return (
            f'{state} ? "{self.state_pattern}" : "{self.pattern}"'
            if self.dropout
            else f'"{self.pattern}"'
        )

    def cpu_pattern_text(self, state):
        return (
            f'{state} ? "{self.cpu_state_pattern}" : "{self.cpu_pattern}"'
            if self.dropout
            else f'"{self.cpu_pattern}"'
        )

    @property
    def tensor_arguments(self):
        return [
            Argument(self._pointer(s), s.name, "out" if s.role == "sum" else s.role)
            for s in self.inputs + self.outputs
        ]

    def _pointer(self, stream):
        """C type of a tensor argument; of a list, that of its host array of pointers."""
        one = f"{'const ' if stream.role == 'in' else ''}{stream.ctype} *"
        return f"{one}const *" if stream.is_list else one

    @property
    def lists(self):
        """Lists of tensors, in the order of the arguments."""
        return [s for s in self.inputs + self.outputs if s.is_list]

    @property
    def list_names(self):
        return [s.name for s in self.lists]

    @property
    def list_arguments(self):
        """Lengths and number of the tensors of all lists."""
        given = [
            Argument("const int64_t *", "lengths", "lengths"),
            Argument("int64_t ", "count", "count"),
        ]
        return given if self.lists else []

    @property
    def list_codes(self):
        """Encodes the lists for core/list.h: bytes per element and flags."""
        nullable = [s.absent is not None or not s.required for s in self.lists]
        flags = [(s.role != "in") + 2 * null for s, null in zip(self.lists, nullable)]
        return "".join(f"{s.dtype.size}{flag}" for s, flag in zip(self.lists, flags))

    @property
    def stride_arguments(self):
        return (
            [Argument(f"const {self.stride_struct} *", "strides", "strides")]
            if self.strided
            else []
        )

    @property
    def stride_struct(self):
        return names.strides(self.op.pattern)

    @property
    def levels(self):
        """Suffixes of a tensor's stride fields, innermost first."""
        return self.family.levels[self.form]

    def levels_of(self, name):
        """Returns the suffixes of one tensor, of either direction."""
        return self.levels

    @property
    def stride_fields(self):
        return [name + level for name in self.strided for level in self.levels_of(name)]

    @property
    def stride_codes(self):
        """Index of each tensor's first stride, encoded for core/check.h."""
        first, at = {}, ord("0")
        for name in self.strided:
            first[name], at = chr(at), at + len(self.levels_of(name))
        return "".join(first.get(name, " ") for name in self.tensor_names)

    @property
    def choice_arguments(self):
        """Arguments of a run-time activation and its scalars."""
        scalars = Argument(
            f"const {self.scalar_ctype} *", "activation_scalars", "activation_scalars"
        )
        return (
            [Argument("kf_activation_t ", "activation", "activation"), scalars]
            if self.runtime_activation
            else []
        )

    @property
    def workspace_arguments(self):
        given = [
            Argument("void *", "workspace", "workspace"),
            Argument("size_t ", "workspace_bytes", "workspace"),
        ]
        return given if self.has_workspace else []

    def _companion(self, cpu):
        """Names the function that returns the workspace size for all activations: the one of
        `none`, or an internal one if the op lacks it. The others are macros.
        """
        if any(a.name == "none" for a in self.op.activations):
            return names.workspace(self.function("none", cpu=cpu))
        return names.workspace(self._internal("kfi", cpu))

    @property
    def companions(self):
        """[(macro, function)] for CUDA and for C: workspace sizes of launchers that share one."""
        of = [(x.workspace, x.cpu_workspace) for x in self.launchers] if self.has_workspace else []
        return [
            [(own, real) for own in column if own != real]
            for column, real in zip(zip(*of), (self.workspace, self.cpu_workspace))
        ] or [[], []]

    @property
    def sole_launcher(self):
        """The only launcher, which is the run function itself; None if there are several."""
        return self.launchers[0] if not self.op.has_act and not self.dropout else None

    @property
    def options(self):
        """Integers that are fields of the shape struct."""
        return self.struct.options if self.struct else []

    @property
    def flat_integers(self):
        """Integers that are arguments of their own."""
        return [name for name in self.integers if name not in self.options]

    @property
    def size_arguments(self):
        """The sizes, or the shape struct."""
        if self.struct:
            return [Argument(f"const {self.struct.ctype} *", shape_structs.NAME, "shape")]
        return [Argument("int64_t ", s, "size") for s in self.sizes]

    @property
    def size_names(self):
        """Names of the size arguments, or of the shape struct."""
        return [a.name for a in self.size_arguments]

    @property
    def size_parameters(self):
        return ", ".join(f"{a.ctype}{a.name}" for a in self.size_arguments)

    @property
    def size_types(self):
        return ", ".join(a.ctype.strip() for a in self.size_arguments)

    @property
    def shape_rules(self):
        """Codes of the shape struct and of the tensors' extents, for core/shape.h."""
        tensors = [
            [shapes.parse(text) for text in self.shape(s)] for s in self.inputs + self.outputs
        ]
        return self.struct.rules(tensors)

    @property
    def tensors(self):
        """Tensor arguments but lists, as (name, bytes per element, kind, use, shared).

        use: in; act, read by the gradients of some activations; result, read instead of those;
        unread; state; inout; out; optional, an output that may be NULL. shared: index, from 1, of
        the earlier tensor whose pointer an output may share: an equal output, or the input that it
        updates; 0: none.
        """
        index, found = {}, []
        for s in [s for s in self.inputs + self.outputs if not s.is_list]:
            use = (
                {"act": "act", "result": "result", "never": "unread"}.get(s.reads, "in")
                if s.role == "in"
                else "inout"
                if s.role == "inout"
                else "out"
                if s.required
                else "optional"
            )
            if s.absent is not None and use in ("in", "act"):
                use = {"in": "absent", "act": "act_absent"}[use]
            other = s.same_as or s.place_of
            found.append((s.name, s.dtype.size, s.kind, use, index[other] + 1 if other else 0))
            index[s.name] = len(index)
        return found + self.state_tensors

    @property
    def state_tensors(self):
        return [(name, 8, "one", "state", 0) for name in ("seed", "offset")] if self.dropout else []

    @property
    def tensor_names(self):
        return [t[0] for t in self.tensors]

    @property
    def tensor_notes(self):
        """Phrases that decode `tensor_codes` for readers of generated code."""
        words = {
            "in": "",
            "act": ", read by some activations",
            "unread": ", not read",
            "state": ", NULL without a state",
            "result": ", read by some activations",
            "absent": ", may be NULL",
            "act_absent": ", may be NULL, read by some activations",
            "inout": ", read and overwritten",
            "out": ", output",
            "optional": ", output, may be NULL",
        }
        groups = {}
        for name, size, kind, use, shared in self.tensors:
            alias = f", may be {self.tensor_names[shared - 1]}" if shared else ""
            groups.setdefault(f"{size}-byte {kind}{words[use]}{alias}", []).append(name)
        return [f"{', '.join(names_)}: {text}" for text, names_ in groups.items()]

    def tensor_codes(self, reads, by=""):
        """Encodes the tensors for core/check.h: an expression that selects a literal per call.
        reads, by: conditions under which the activation's gradient reads its argument, or the
        result.
        """
        out, nullable, unread = kinds.OUT, kinds.NULLABLE, kinds.UNREAD

        def codes(reads, from_state):
            uses = {
                "in": 0,
                "act": 0 if reads == 1 else nullable | unread,
                "unread": nullable | unread,
                "state": 0 if from_state else nullable,
                "result": 0 if reads == 2 else nullable | unread,
                "absent": nullable,
                "act_absent": nullable | (0 if reads == 1 else unread),
                "inout": out,
                "out": out,
                "optional": out | nullable,
            }

            def kind_of(kind, use):
                """Kind of a tensor; one that is overwritten shares its pointer with no other."""
                found = self.family.kind(kind)
                return found.but(overlap=kinds.NONE) if use == "inout" else found

            found = [
                kinds.code(size, kind_of(kind, use), uses[use], shared)
                for _, size, kind, use, shared in self.tensors
            ]
            return f'"{"".join(found)}"'

        def select(condition, needed, of):
            return f"{condition} ? {of(True)} : {of(False)}" if needed else of(True)

        def of_state(r):
            return select("kfi_from_state", self.dropout, lambda s: codes(r, s))

        if self.by_result:
            return f"{by} ? {of_state(2)} : {select(reads, True, lambda r: of_state(int(r)))}"
        return select(reads, self.asks_reads, lambda r: of_state(int(r)))
