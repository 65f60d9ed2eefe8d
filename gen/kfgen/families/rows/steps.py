# SPDX-License-Identifier: Apache-2.0
"""Launch steps of an op over rows, as core/rows/host.cuh launches them."""

import functools

from kfgen.model import steps
from kfgen.model.steps import PARTIALS, Launch, Step

# kfi_rows_schedule of core/rows/args.cuh
REGISTERS, WARP, REREAD, PERSISTENT = (
    f"KFI_ROWS_{word}" for word in ("REGISTERS", "WARP", "REREAD", "PERSISTENT")
)
STAGED = "staged"
CLUSTER = 8  # KFI_ROW_CLUSTER of core/rows/args.cuh


class RowsSteps:
    """The part of RowsCuda that describes the launches of a call."""

    @functools.cached_property
    def steps(self):
        k = self.k
        read = steps.names(k.sources + k.values + k.gathered_inputs)
        written = steps.names(k.stores + k.results_of_rows)
        if not k.added:
            return [Step("computes the rows", self.launches(self.instances), read, written)]
        few = k.plane_sums or self.strips  # such calls have their sums after the first launch
        written += (*(steps.names(k.added) if few else ()), PARTIALS)
        when = "a summed gradient is wanted" + ("; not for few rows" if few else "")
        columns = k.extents[-1] if k.sums else "channels"
        return [
            Step(
                "computes the rows and partial sums", self.launches(self.instances), read, written
            ),
            *self.sum_steps(columns, when=when),
        ]

    def launches(self, instances):
        """Groups kernels of a row by schedule (steps.Launch)."""
        of = {}
        for kernel in instances:
            word = kernel.arguments[2].split(" ")[0] if len(kernel.arguments) > 2 else STAGED
            of.setdefault(word, []).append(kernel)
        return tuple(self._launch(word, tuple(kernels)) for word, kernels in of.items())

    def _launch(self, schedule, kernels):
        slots = "slots of the reductions"
        if schedule == STAGED:
            return Launch(kernels, "rows", "up to 1024", shared=f"{slots}, and the row")
        if schedule == PERSISTENT or self.k.sums:
            grid, shared = "persistent: groups of rows x cluster", f"{slots}, and rows in flight"
            early = None if self.strips else False  # the kernel for few rows is launched early
            return Launch(kernels, grid, "by the row length", CLUSTER, shared, early=early)
        return Launch(kernels, "rows / rows of a block", "by the row length", shared=slots)
