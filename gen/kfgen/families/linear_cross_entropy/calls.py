# SPDX-License-Identifier: Apache-2.0
"""Linear cross entropy in both backends: the launchers called per chunk of rows."""

import functools

from kfgen.model import names
from kfgen.model.names import gradient_of
from kfgen.model.schedule import C, Cuda
from kfgen.model.signature import Launcher

LOGITS, INNER = "workspace.logits", "workspace.inner"  # buffers


class Calls:
    """The calls of a chunk. null: the backend's null pointer; cpu: True for C."""

    cpu, null = False, "nullptr"

    def pointer(self, name):
        """Pointer to the chunk's first row of a tensor."""
        k = self.k
        at, stream = next((i, s) for i, s in enumerate(k.streams) if s.name == name)
        if stream.kind not in ("left", "per_row"):
            return name
        step = f"kfi_first * kfi_all.of[{at}].apart[0]" if stream.kind == "left" else "kfi_first"
        may_be_null = stream.absent is not None or not stream.required
        return f"{name} ? {name} + {step} : {self.null}" if may_be_null else f"{name} + {step}"

    def scalar(self, name):
        return name

    def given(self, layer):
        """{parameter of a called launcher: argument}."""
        k, (x, weight, bias) = self.k, (self.k.of[kind].name for kind in ("left", "right", "row"))
        found = {s.name: self.pointer(s.name) for s in k.streams if s.kind == "per_row"}
        found |= {name: self.scalar(name) for name in (*k.integers, *k.scalars)}
        found |= {
            "rows": "kfi_count",
            "cols": "cols",
            "depth": "depth",
            "batch": "1",
            "stream": "stream",
        }
        found["strides"] = "&kfi_layer_strides" if layer else "&kfi_rows_strides"
        if not layer:
            return found | dict.fromkeys((self.row, gradient_of(self.row)), "kfi_logits")
        found |= {
            "x": self.pointer(x),
            "weight": weight,
            "bias": bias,
            "workspace": "kfi_inner",
            "workspace_bytes": "kfi_bytes",
        }
        found |= {"out": "kfi_logits", "pre": self.null}
        if k.with_grads:
            grads = {
                f"d{name}": self.pointer(f"d{of}")
                for name, of in (("x", x), ("weight", weight), ("bias", bias))
            }
            found |= grads | {
                "dout": "kfi_logits",
                "beta": f"kfi_first ? 1 : {self.scalar('beta')}",
            }
        return found

    @property
    def row(self):
        """Name of the logits operand in the op over rows."""
        return next(o.name for o in self.k.op.made_of[1].operands if o.kind == "elem")

    @property
    def calls(self):
        """[(launcher, its arguments)]."""
        found = []
        for call in self.k.called:
            launcher = Launcher(call.kernel, call.act, False)
            given = self.given(call.kernel.op is self.k.op.made_of[0])
            if call.kernel.bwd:
                given |= {"out": self.null}
            arguments = [given[a.name] for a in launcher.arguments] + ["stream"] * (not self.cpu)
            found.append(
                (launcher.cpu_name if self.cpu else f"{launcher.name}<>", ", ".join(arguments))
            )
        return found

    @property
    def layer_strides(self):
        return names.strides(self.k.op.made_of[0].pattern)

    @property
    def rows_strides(self):
        return names.strides(self.k.op.made_of[1].pattern)

    @property
    def logits(self):
        """[(struct of strides, its member)] of a chunk's logits and, in place, their gradient."""
        return [
            (struct, name)
            for struct, own in (("kfi_layer_strides", "out"), ("kfi_rows_strides", self.row))
            for name in (own, gradient_of(own))
        ]

    @property
    def strides(self):
        """[(the layer's tensor, this op's)] of the strided tensors."""
        k = self.k
        found = {"x": k.of["left"].name, "weight": k.of["right"].name}
        found |= {gradient_of(name): gradient_of(own) for name, own in found.items()}
        return [(name, own) for name, own in found.items() if own in k.strided]

    @property
    def chunk_bytes(self):
        return "KFI_CPU_LOGITS_BYTES" if self.cpu else "KFI_LOGITS_BYTES"

    @property
    def shapes(self):
        """Extents of each tensor, one letter each: r rows, c cols, d depth."""
        return " ".join(
            "".join(extent[0] for extent in self.k.shape(s)) for s in self.k.inputs + self.k.outputs
        )

    @property
    def workspace_bytes(self):
        """Workspace size: the chunk, and the layer's workspace in each direction."""
        layers = [part for part in self.k.called_kernels if part.op is self.k.op.made_of[0]]
        of = [part.cpu_workspace if self.cpu else f"{part.workspace}<>" for part in layers] + [
            self.null
        ]
        size = f"{self.k.dtype.size}, {self.chunk_bytes}"
        return f"kfi_logits_workspace(rows, cols, depth, {size}, {of[0]}, {of[1]})"


class LinearCrossEntropyC(Calls, C):
    cpu, null = True, "NULL"

    def scalar(self, name):
        k = self.k
        return (
            f"kfi_integers[{k.integers.index(name)}]"
            if name in k.integers
            else f"kfi_scalars[{[*k.scalars, *k.betas].index(name)}]"
        )

    @property
    def run_parameters(self):
        k = self.k
        found = [f"{a.ctype}{a.name}" for a in k.tensor_arguments] + [
            f"int64_t {s}" for s in k.sizes
        ]
        found += [f"{a.ctype}{a.name}" for a in k.stride_arguments]
        found += ["const kf_i64 *kfi_integers"] * bool(k.integers) + [
            f"const {k.scalar_ctype} *kfi_scalars"
        ] * bool([*k.scalars, *k.betas])
        return ", ".join(found + [f"{a.ctype}{a.name}" for a in self.workspace_arguments])

    def run_arguments(self, launcher):
        k = self.k
        found = (
            [a.name for a in k.tensor_arguments] + k.sizes + [a.name for a in k.stride_arguments]
        )
        found += ["kfi_integers"] * bool(k.integers) + ["kfi_scalars"] * bool(
            [*k.scalars, *k.betas]
        )
        return ", ".join(found + [a.name for a in self.workspace_arguments])

    def listing(self, act):
        """The computation in order, for readers."""
        return [f"{name}(...)" for name, _ in self.calls]


class LinearCrossEntropyCuda(Calls, Cuda):
    template = "parts"

    @property
    def instances(self):
        return [i for part in self.k.called_kernels for i in part.cuda.instances]

    @property
    def buffers(self):
        return {LOGITS: "logits of a chunk of rows", INNER: "workspace of the called launchers"}

    @functools.cached_property
    def steps(self):
        return [step for call in self.k.called for step in call.steps]

    def listing(self):
        """The computation in order, for readers."""
        return [f"{name}(...)" for name, _ in self.calls]
