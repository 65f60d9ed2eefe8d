# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings in CUDA: a thread rotates one vector of pairs of a head."""

import functools

from kfgen.language.emit import emit
from kfgen.model import steps
from kfgen.model.schedule import CHEAP, Cuda
from kfgen.model.steps import Instance, Launch, Step


class RopeCuda(Cuda):
    argument_type = "kfi_rope"  # the type of argument g

    @property
    def vec(self):
        return 16 // self.k.dtype.size

    @functools.cached_property
    def code(self):
        """(lines, texts of the two results)."""
        env = {p: f"{p}_f[e]" for s in self.k.paired for p in s.parts} | {
            s.name: f"{s.name}_f[e]" for s in self.k.read_angles
        }
        env[self.k.number.name] = f"({self.k.dtype.compute_ctype}){self.k.number.name}_i"
        return emit(self.k.graph, self.k.roots, self.target(CHEAP), env, fixed={})

    @property
    def results(self):
        return list(zip(self.k.outputs[0].parts, self.code[1]))

    @property
    def passed(self):
        more = [self.k.more[s.name] for s in self.k.paired] if self.k.second_source else []
        return [*self.k.paired, *more, *self.k.read_angles, self.k.number]

    @property
    def kernel_parameters(self):
        found = [f"const {s.dtype.device} *{s.name}" for s in self.passed] + [
            f"{s.dtype.device} *{s.name}" for s in self.k.stores
        ]
        return ", ".join(
            [
                *found,
                f"{self.argument_type} g",
                *(f"{self.k.scalar_ctype} {s}" for s in self.k.used_scalars),
            ]
        )

    @property
    def kernel_arguments(self):
        return ", ".join(
            f"&{name}"
            for name in [
                *(s.name for s in [*self.passed, *self.k.stores]),
                "kfi_g",
                *self.k.used_scalars,
            ]
        )

    @property
    def fields(self):
        """Fields of the op's struct: (name, value, comment)."""
        return [("vec", self.vec, "elements per vector")]

    @property
    def instances(self):
        return [Instance(f"kfk_{self.k.name}", ("act", vec)) for vec in (self.vec, 1)]

    @functools.cached_property
    def steps(self):
        launch = Launch(tuple(self.instances), "heads of all rows / heads of a block", "256")
        read, written = steps.names(self.passed), steps.names(self.k.stores)
        return [Step("rotates the pairs of each head", (launch,), read, written)]

    def listing(self):
        """The computation in order, for readers."""
        return [*self.code[0], *(f"{part} = {text};" for part, text in self.results)]
