# SPDX-License-Identifier: Apache-2.0
"""Embeddings in CUDA: several threads copy a row of the table, or sum a row of its gradient."""

import functools

from kfgen.language.emit import emit
from kfgen.model import steps
from kfgen.model.schedule import CHEAP, Cuda
from kfgen.model.steps import Instance, Launch, Step

SORTED = "workspace.sorted"  # buffer of the sort
DIGIT = "digit of 8 bits"
# Kernels of core/index_sort.cuh, in launch order: (name, what it does, grid, loops).
SORT = (
    ("count", "counts the digits of each tile of indices", "ceil({rows} / 2048)", (DIGIT,)),
    ("scan", "computes each digit's prefix sums over the tiles", "256", (DIGIT,)),
    (
        "scatter",
        "moves the indices behind those of smaller digits",
        "ceil({rows} / 2048)",
        (DIGIT,),
    ),
    ("bounds", "searches the first row of each index", "{vocab} / searches of a block", ()),
)


def sort_instances(dtype):
    """Kernels that sort indices of a dtype."""
    return [Instance(f"kfk_index_{word}", (f"KF_{dtype.word.upper()}",)) for word, *_ in SORT]


def sort_steps(number, rows, vocab, **more):
    """Returns the steps that sort the indices of `number`. vocab: the size that bounds them."""
    kernels = sort_instances(number.dtype)
    per = more.pop("per", ())
    return [
        Step(
            does,
            (Launch((kernel,), grid.format(rows=rows, vocab=vocab), "256"),),
            (number.name,) if word == "count" else (number.name, SORTED),
            (SORTED,),
            per=(*per, *loops),
            **more,
        )
        for kernel, (word, does, grid, loops) in zip(kernels, SORT)
    ]


class EmbeddingCuda(Cuda):
    @property
    def template(self):
        return "sum" if self.k.bwd else "kernel"

    @property
    def vec(self):
        return 16 // self.k.dtype.size

    @functools.cached_property
    def code(self):
        """(lines, text of the result)."""
        target = self.target(frozenset() if self.k.bwd else CHEAP | {"quotient"})  # sums cancel
        lines, [text] = emit(
            self.k.graph,
            self.k.roots,
            target,
            {s.name: f"{s.name}_f[e]" for s in self.k.inputs},
            fixed={},
        )
        return lines, text

    @property
    def reads_table(self):
        return self.k.table.reads != "never"

    @property
    def kernel_parameters(self):
        found = [f"const {s.dtype.device} *{s.name}" for s in self.passed[0]] + [
            f"{s.dtype.device} *{s.name}" for s in self.k.outputs
        ]
        return ", ".join(
            [*found, "kfi_embedding g", *(f"{self.k.scalar_ctype} {s}" for s in self.scalars)]
        )

    @property
    def kernel_arguments(self):
        return ", ".join(
            f"&{name}" for name in [*(s.name for s in sum(self.passed, [])), "kfi_g", *self.scalars]
        )

    @property
    def passed(self):
        """(inputs, outputs) of the kernel. A gradient reads sorted rows instead of the tokens."""
        return [
            s
            for s in self.k.inputs
            if s.reads != "never" and not (self.k.bwd and s is self.k.number)
        ], self.k.outputs

    @property
    def scalars(self):
        return [*self.k.used_scalars, *self.k.betas]

    @property
    def fields(self):
        """Fields of kfi_embedding_op: (name, value, comment)."""
        return [("vec", self.vec, "elements per vector")]

    @property
    def workspace_bytes(self):
        return "kfi_embedding_workspace(rows, cols, vocab)"

    @property
    def own_instances(self):
        shapes = [(self.vec,), (1,)] if self.k.bwd else [(self.vec, 4), (self.vec, 1), (1, 1)]
        return [Instance(f"kfk_{self.k.name}", ("act", *shape)) for shape in shapes]

    @property
    def instances(self):
        """Kernels in the order that core/embedding/embedding.cuh expects."""
        return self.own_instances + (sort_instances(self.k.number.dtype) if self.k.bwd else [])

    @property
    def buffers(self):
        held = {SORTED: "row indices sorted by token, and where each token begins"}
        return held if self.k.bwd else {}

    @functools.cached_property
    def steps(self):
        k, kernels = self.k, tuple(self.own_instances)
        read, written = steps.names(self.passed[0]), steps.names(k.outputs)
        if not k.bwd:
            launch = Launch(kernels, "rows / rows of a block", "256")
            return [Step("copies rows of the table", (launch,), read, written)]
        launch = Launch(kernels, "persistent: at most 16 blocks per SM", "128", early=False)
        return [
            *sort_steps(k.number, "rows", "vocab", when="rows > 0"),
            Step("sums the rows of each token", (launch,), (*read, *written, SORTED), written),
        ]

    def listing(self):
        """The computation in order, for readers."""
        result = self.k.outputs[0].name
        return [
            *self.code[0],
            f"{result}_s[e] += {self.code[1]};" if self.k.bwd else f"{result} = {self.code[1]};",
        ]
