# SPDX-License-Identifier: Apache-2.0
"""CUDA schedule of the family `rope_norm`: some lanes of a warp share a head, which they read
once if each has one vector per side.
"""

import functools

from kfgen.families.rope.cuda import RopeCuda
from kfgen.language.passes import program
from kfgen.language.primitives import COUNT, PER_COUNT
from kfgen.model import steps
from kfgen.model.schedule import CHEAP
from kfgen.model.steps import PARTIALS, Instance, Launch, Step


class RopeNormCuda(RopeCuda):
    argument_type = "kfi_heads"

    @functools.cached_property
    def program(self):
        env = {name: f"{name}_f[e]" for name in ("head", "weight", "dy")} | {
            COUNT: "count",
            PER_COUNT: "per_count",
        }
        return program(
            self.k.norm, dict(self.k.normed), self.target(frozenset() if self.k.bwd else CHEAP), env
        )

    @property
    def passed(self):
        """Inputs that the kernel takes."""
        return [s for s in self.k.inputs if s.reads != "never"]

    @property
    def kernel_parameters(self):
        found = [f"const {s.dtype.device} *{s.name}" for s in self.passed] + [
            f"{s.dtype.device} *{s.name}" for s in self.k.stores
        ]
        return ", ".join(
            [*found, "kfi_heads g", *(f"{self.k.scalar_ctype} {s}" for s in self.k.used_scalars)]
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
        return [*super().fields, ("acc_size", self.k.dtype.acc.size, "bytes of an accumulator")]

    @property
    def workspace_bytes(self):
        sizes = "rows, heads, kv_heads, dim, pairs, positions"
        return f"kfi_heads_workspace({sizes}, {self.k.dtype.acc.size})"

    @property
    def instances(self):
        """Kernels in the order of core/rope_norm/rope_norm.cuh: one vector per side and thread, or
        several.
        """
        return [
            Instance(f"kfk_{self.k.name}", ("act", vec, once))
            for vec in (self.vec, 1)
            for once in (1, 0)
        ]

    @functools.cached_property
    def steps(self):
        k = self.k
        grid = "by rows, heads and dim" if k.bwd else "heads of all rows / heads of a block"
        launch = Launch(tuple(self.instances), grid, "256")
        read, written = steps.names(self.passed), steps.names(k.stores)
        if not k.bwd:
            return [Step("normalises and rotates each head", (launch,), read, written)]
        does = "computes the heads' gradients and partial sums of the weights'"
        return [
            Step(does, (launch,), read, (*written, PARTIALS)),
            *self.sum_steps("dim", when="a gradient of a weight is wanted"),
        ]

    def listing(self):
        """The computed statements in order, for documentation."""
        turned = super().listing()
        return (
            [*turned, *self.program.listing()] if self.k.bwd else [*self.program.listing(), *turned]
        )
