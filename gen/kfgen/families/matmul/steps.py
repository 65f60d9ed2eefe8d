# SPDX-License-Identifier: Apache-2.0
"""Launch steps of a matmul function, as core/matmul/op.cuh and core/matmul/backward.cuh launch
them.
"""

from kfgen.families.matmul.instances import Hopper
from kfgen.model.steps import NONE, Launch, Step

FACTOR, DACC, SPLITS, SUMS = (f"workspace.{name}" for name in ("factor", "dacc", "splits", "sums"))
PASS_GRID = "batch x parts of the rows x blocks of columns"
TILES = "tiles of the result x splits of K"
PERSISTENT = "persistent: at most one block per SM"
CLUSTER = 4  # blocks that share K with skinny M


class Steps:
    """The part of MatmulCuda that describes the launches of a call."""

    @property
    def buffers(self):
        found = {DACC: "gradients of the products' accumulators"} if self.k.bwd else {}
        if self.loads:
            found[FACTOR] = "the left factor, which `load` makes"
        if self.k.bwd and any(map(self.is_vector, self.k.outs)):
            found[SUMS] = "partial sums over rows"
        return found | {SPLITS: "partial tiles of split-K"}

    @property
    def steps(self):
        return self.steps_of(self.k.acts[0])

    def steps_of(self, act):
        return self._backward(act) if self.k.bwd else self._forward()

    def _named(self, tensors):
        """Arguments that are, or contain, these tensors."""
        return tuple(dict.fromkeys(self.k.tensor_of(s.name) for s in tensors))

    def _pass(self, does, seam, kernel, read, written, when=""):
        """The step of an elementwise pass."""
        launch = Launch((kernel,), PASS_GRID, "256")
        return Step(does, (launch,), (*self._named(self.pass_reads(seam)), *read), written, when)

    def _product(self, does, kernels, factors, reads, writes, when="", per=()):
        """The step of a product, whose kernels load factors by cp.async or through tensor maps."""
        mapped = [k for k in kernels if isinstance(k, Hopper) and "_skinny" not in k.kernel]
        skinny = [k for k in kernels if isinstance(k, Hopper) and "_skinny" in k.kernel]
        plain = [k for k in kernels if k not in mapped and k not in skinny]
        slabs = [k for k in mapped if "_slabs" in k.kernel]
        mapped = [k for k in mapped if k not in slabs]
        found = [Launch(tuple(plain), TILES, "by the tile", shared="tiles of both factors")]
        more = {"shared": "pipeline stages", "maps": factors}
        if mapped:
            found.append(Launch(tuple(mapped), PERSISTENT, "by the tile", early=False, **more))
        if skinny:
            grid = "tiles of the result x cluster"
            found.append(Launch(tuple(skinny), grid, "by the tile", CLUSTER, early=None, **more))
        if slabs:
            more["maps"] = (*factors, *self._named(self.k.outs))
            found.append(Launch(tuple(slabs), PERSISTENT, "by the tile", early=False, **more))
        return Step(does, tuple(found), tuple(dict.fromkeys(reads)), (*writes, SPLITS), when, per)

    def _reduce(self, kernel, reads, writes, when="K is split", per=()):
        launch = Launch((kernel,), "blocks of rows x blocks of columns x batch", "by the sizes")
        does = "adds up the partial tiles of split-K"
        return Step(does, (launch,), (SPLITS, *reads), writes, when, per)

    def _forward(self):
        k, size, own = self.k, self.product_kernels, self.own_instances
        factors = (FACTOR,) if self.loads else (k.tensor_of(self.left.name),)
        factors += tuple(dict.fromkeys(k.tensor_of(p.weight.name) for p in k.products))
        written = self._named(k.outs)
        read = (*self._named(self.read), *(written if k.accumulates else ()))
        kernels = own[:size] + own[size + 1 + len(self.pass_instances) :]
        found = []
        if self.loads:
            [kernel] = self.pass_instances
            does = "computes the left factor"
            found.append(self._pass(does, self.loads, kernel, (), (FACTOR,)))
        return [
            *found,
            self._product(
                "multiplies and computes the results", kernels, factors, (*factors, *read), written
            ),
            self._reduce(own[size], read, written),
        ]

    def _backward(self, act):
        dacc = self._dacc_steps(act)
        products = [*self._input_steps(act), *self._weight_steps(act)]
        # Products that read dout run before a pass that may overwrite it in place.
        return [*products, *dacc] if self._is_dacc(act) else [*dacc, *products]

    def _is_dacc(self, act):
        """Returns whether dout is dacc with this activation (dout_is_dacc)."""
        return bool(self.dout_is_dacc) and (self.dout_is_dacc == "true" or act.name == "none")

    def _factors(self, act):
        """Names of dacc, of the left factor and of the weights."""
        k = self.k
        dacc = (k.dout_as_dacc,) if self._is_dacc(act) else (DACC,)
        left = (FACTOR,) if self.loads else (k.tensor_of(self.left.name),)
        return dacc, left, tuple(dict.fromkeys(k.tensor_of(p.weight.name) for p in k.products))

    def _totals(self, made):
        """The step that sums the vectors of a pass over rows."""
        vectors = self._named([m for m in made if self.is_vector(m)])
        launch = Launch((self.sum_instances[-1],), "ceil(batch x columns / 32)", "256")
        does, when = "adds up the partial sums over rows", "the gradient is wanted"
        per = ("vector",)
        return [Step(does, (launch,), (SUMS, *vectors), vectors, when, per)] if vectors else []

    def _dacc_steps(self, act):
        made = [m for m in self.passes[0].makes if self.is_tensor(m)]
        if self._is_dacc(act):
            if not made:
                return []
            does, own, when = "computes elementwise gradients", (), "one of them is wanted"
        else:
            does, own, when = "computes the gradients of the accumulators", (DACC,), ""
        vectors = [m for m in made if self.is_vector(m)]
        written = (*own, *self._named(m for m in made if m not in vectors), *[SUMS] * bool(vectors))
        kernel = self.pass_instances[0]
        found = self._pass(does, self.passes[0], kernel, (), written, when)
        return [found, *self._totals(made)]

    def _input_steps(self, act):
        k, size, when = self.k, self.product_kernels, "a gradient of the left factor is wanted"
        made = [s for s in k.outs if s.kind in ("left", "depth")]
        if not made:
            return []
        dacc, _, weights = self._factors(act)
        written = () if self.loads else self._named(made)
        kernels, reduce = self.sum_instances[:size], self.sum_instances[size]
        reads = (*dacc, *weights)
        found = [self._product("multiplies dacc and weights", kernels, reads, reads, written, when)]
        if reduce != NONE:
            return [*found, self._reduce(reduce, (), written)]
        does, kernel = (
            "computes the gradients of the left factor's operands",
            self.pass_instances[1],
        )
        vectors = [m for m in made if self.is_vector(m)]
        written = (*self._named(m for m in made if m not in vectors), *[SUMS] * bool(vectors))
        own = self._pass(does, self.passes[1], kernel, (SPLITS,), written, when)
        return [*found, own, *self._totals(made)]

    def _weight_steps(self, act):
        k, size, when = self.k, self.product_kernels, "its gradient is wanted"
        made = self._named(s for s in k.outs if s.kind == "right")
        if not made:
            return []
        dacc, left, _ = self._factors(act)
        found = []
        if self.loads:
            does, kernel = "computes the left factor", self.pass_instances[2]
            more = "a weight's gradient is wanted"
            found.append(self._pass(does, self.loads, kernel, (), left, more))
        first = size + 1
        kernels, reduce = self.sum_instances[first:][:size], self.sum_instances[first + size]
        per, reads = ("weight",), (*dacc, *left)
        does = "multiplies dacc and the left factor"
        # beta: the old value is read.
        return [
            *found,
            self._product(does, kernels, reads, (*reads, *made), made, when, per),
            self._reduce(reduce, made, made, per=per),
        ]
