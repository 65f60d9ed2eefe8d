# SPDX-License-Identifier: Apache-2.0
"""Oracle of optimizers: `refs` in float64, which read the gradients as they are after scaling."""

from dataclasses import replace

import numpy as np

from kfgen.families import reference
from kfgen.families.optimizer import once
from kfgen.families.optimizer.kernel import FOUND, SCALE, VALUE
from kfgen.model.entries import updated

POINTS = reference.POINTS


class OptimizerReference(reference.Reference):
    @property
    def differentiable(self):
        return False

    def is_number(self, operand):
        return operand.kind == VALUE

    def inputs(self, rng):
        found = super().inputs(rng)
        device = self.op.own["device"]
        given = {SCALE: 4.0, FOUND: 0.0} | (dict(device) if isinstance(device, dict) else {})
        for o in self.op.operands:
            if o.kind == VALUE:
                value = given.get(o.name, 0.5)
                value = value["value"] if isinstance(value, dict) else value
                found[o.name] = np.full(POINTS, float(value))
        return found

    def values(self, inputs, mask):
        names, gradient = dict(inputs), self.op.own["gradient"]
        if gradient:
            sign = -1.0 if self.scalars["maximize"] else 1.0
            names[gradient] = sign * inputs[gradient] / inputs[SCALE]
        numbers = {o.name for o in self.op.operands if o.kind == VALUE}
        names |= {name: float(np.ravel(names[name])[0]) for name in numbers & set(names)}
        if not self.op.own["tensor_sums"]:
            return reference.values(self.op, self.act, names, self.scalars)
        return self._values_of_a_tensor(names)

    def _values_of_a_tensor(self, names):
        """Values of one tensor. References of lists that depend on sums read the next values of the
        others, in `names` if they are given.
        """
        found, applied = {}, {*map(updated, self.kernel(False).applied)}
        for last in (False, True):
            own = {n: t for n, t in self.op.refs.items() if (n in applied) == last}
            op = replace(self.op, refs=own)
            found |= reference.values(op, self.act, found | names, self.scalars)
        return found

    def results(self, bwd, env, single=False, by=False):
        kernel = self.kernel(bwd)
        if kernel.is_sum:
            return self._results_of_sums(kernel, env)
        if kernel.sums_of:
            return self._results_of_a_tensor(kernel, env)
        known = {n: float(np.ravel(v)[0]) for n, v in (self.scalars | env).items() if np.size(v)}
        nodes = {n: kernel.once[n] for n in kernel.elementwise_names}
        return super().results(bwd, env | once.evaluate(kernel.once_graph, nodes, known), single)

    def _results_of_sums(self, kernel, env):
        """Evaluates sums and numbers."""
        nodes = dict(zip(kernel.sums_of, kernel.roots))
        sums = reference.evaluated(kernel.graph, nodes, env)
        sums = {name: np.sum(np.broadcast_to(v, (POINTS,))) for name, v in sums.items()}
        known = {n: float(np.ravel(v)[0]) for n, v in (self.scalars | env | sums).items()}
        nodes = {s.next_name: kernel.once[s.next_name] for s in kernel.updated}
        return once.evaluate(kernel.once_graph, nodes, known)

    def _results_of_a_tensor(self, kernel, env):
        found = self.passes(kernel, env)
        return {s.next_name: found[s.next_name] for s in kernel.updated if s is not kernel.master}

    def passes(self, kernel, env):
        """Evaluates the passes over one tensor: {value of the call or the tensor, or next value of
        a list: what it is}. env: lists, and numbers in device memory.
        """
        known = {n: float(np.ravel(v)[0]) for n, v in (self.scalars | env).items() if np.size(v)}
        graph = kernel.once_graph
        found = once.evaluate(graph, {n: kernel.once[n] for n in kernel.call_values}, known)
        for of, results in kernel.passes:
            values = reference.evaluated(of, results, env | found)
            sums = {n: np.sum(v) for n, v in values.items() if n in kernel.sums_of}
            found |= values | sums
            if sums:
                nodes = {n: kernel.once[n] for n in kernel.tensor_values}
                found |= once.evaluate(graph, nodes, known | sums)
        return found

    def _inlined(self, bwd):
        kernel = self.kernel(bwd)
        written = [s for s in kernel.updated if s is not kernel.master]
        return kernel.graph, {s.next_name: s.exprs[0] for s in written}
