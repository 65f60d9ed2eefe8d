# SPDX-License-Identifier: Apache-2.0
"""The family `gemm` in CUDA, of which there are the forwards: core/gemm.cuh makes the sums of a tile, whose kernel then reads what else there is at a
result's place; where blocks share a depth, another kernel does that. What is done to elements of the left factor is a function of its own."""

import functools
import zlib
from dataclasses import dataclass

from kfgen.emit import emit
from kfgen.expr import KEEP, KEEP_SCALE
from kfgen.schedule import CHEAP, Cuda, Instance

LAYOUTS = {"nt": 0, "tt": 1, "nn": 2, "tn": 3}  # which factors lie with lines along the depth: core/gemm_tile.cuh
# The tiles and how operands come to them, in the order of core/gemm_op.cuh, by bytes of an element.
TILES = {2: [("LARGE", "WHOLE"), ("MIDDLE", "WHOLE"), ("SMALL", "WHOLE"), ("MIDDLE", "ANY"), ("SMALL", "ANY")],
         4: [("WIDE", "WHOLE"), ("LEAST", "WHOLE"), ("WIDE", "ANY"), ("LEAST", "ANY")], 8: [("LEAST", "WHOLE"), ("LEAST", "ANY")]}
LOADED = 4  # tensors beside the first that the left factor is made of: kfi_gemm_seams


@dataclass(frozen=True)
class Old(Instance):
    """Of devices before sm_80."""

    def __str__(self):
        return f"KFI_OLD_{'STATE_' if 'from_state' in self.arguments else ''}ADDRESS({self.name()})"


class GemmCuda(Cuda):
    template = "gemm_kernel"

    def __init__(self, kernel):
        super().__init__(kernel)
        others = [s for seam in kernel.seams if seam.word == "load" for s in seam.reads if s.name != self.left.name]
        self.loaded = others
        kernel.limit("load", "tensors of the left factor beside the first", [s.name for s in others], LOADED)

    @property
    def left(self):
        return next(s for s in self.k.operands if s.kind == "left")

    @property
    def loads(self):
        return next((seam for seam in self.k.seams if seam.word == "load"), None)

    @property
    def store(self):
        return self.k.seams[-1]

    @property
    def vec(self):
        return 16 // self.k.dtype.size

    @property
    def layout(self):
        return LAYOUTS[self.k.form]

    @property
    def seam(self):
        """The number of the left factor's function: another one for each kernel, that of a user's spec too."""
        return zlib.crc32(self.k.name.encode()) & 0x7FFFFFFF | 1 if self.loads else 0

    def number(self, stream):
        return (self.k.inputs + self.k.outputs).index(stream)

    @property
    def loaded_codes(self):
        return "".join(chr(ord("a") + self.number(s)) for s in self.loaded)

    @functools.cached_property
    def load_code(self):
        """(lines, the text of an element of the left factor)."""
        env = {s.name: f"{s.name}_f" for s in self.loaded} | {self.left.name: "v[e]"}
        lines, texts = emit(self.k.graph, [self.k.roots[r] for r in self.loads.roots], self.target(CHEAP), env, fixed={})
        return lines, texts[0]

    @functools.cached_property
    def load_scalars(self):
        read = self.k.graph.variables([self.k.roots[r] for r in self.loads.roots])
        return [(s, i) for i, s in enumerate(self.k.scalars) if s in read]

    @functools.cached_property
    def code(self):
        """(lines, a text for each result)."""
        env = {s.name: f"{s.name}_f[e]" for s in self.read} | {p.name: f"acc[{i}][e]" for i, p in enumerate(self.k.products)}
        env |= {KEEP: "keep[e]", KEEP_SCALE: self.keep_scale}
        return emit(self.k.graph, [self.k.roots[r] for r in self.store.roots], self.target(CHEAP), env, fixed={})

    @property
    def read(self):
        """The tensors that are read at a result's place."""
        return [s for s in self.store.reads if s in self.k.inputs]

    @property
    def results(self):
        return list(zip(self.k.outputs, self.code[1]))

    @property
    def store_scalars(self):
        """Those that the kernel is given: its own, and beta."""
        read = self.k.graph.variables([self.k.roots[r] for r in self.store.roots])
        return [s for s in self.k.scalars if s in read] + self.k.betas

    @property
    def kernel_parameters(self):
        found = ["kfi_gemm_tensors t", "kfi_gemm g", "kfi_gemm_seams seams", *(f"{self.k.scalar_ctype} {s}" for s in self.store_scalars)]
        return ", ".join(found + ["kfi_rng rng"] * self.k.keeps + self.act_parameters)

    @property
    def finish_parameters(self):
        found = ["const kfi_gemm_cell &cell", "kf_i64 matrix", "const kfi_gemm &g", "const kfi_gemm_tensors &t",
                 *(f"{self.k.scalar_ctype} {s}" for s in self.store_scalars)]
        return ", ".join(found + ["const kfi_rng &rng"] * self.k.keeps + [f"const {self.k.scalar_struct} &scalars"] * self.k.has_act)

    @property
    def finish_arguments(self):
        return ", ".join(["cell", "matrix", "g", "t", *self.store_scalars] + ["rng"] * self.k.keeps + self.act_arguments)

    @property
    def kernel_arguments(self):
        return ", ".join(f"&{n}" for n in ["t", "g", "seams", *self.store_scalars] + ["rng"] * self.k.keeps + self.act_arguments)

    @property
    def instances(self):
        name, state, size = f"kfk_{self.k.name}", ("from_state",) * self.k.keeps, self.k.dtype.size
        found = [Instance(name, ("act", f"KFI_TILE_{tile}", f"KFI_{how}", *state)) for tile, how in TILES[size]]
        old = [Old(name, ("act", "KFI_TILE_LEAST", "KFI_ANY", *state))] if size == 2 else []
        return [*found, *old, Instance(f"{name}_joint", ("act", *state))]

    @property
    def stage_instances(self):
        return [self.instances[:-1], self.instances[-1:]]

    @property
    def workspace_bytes(self):
        return f"kfi_gemm_forward_workspace(batch, rows, cols, depth, {len(self.k.products)}, {self.k.dtype.size})"

    def listing(self):
        """What is computed, in order, for a reader."""
        found = []
        if self.loads:
            found = ["load:", *(f"    {line}" for line in self.load_code[0]), f"    v[e] = {self.load_code[1]};"]
        return [*found, "store:", *(f"    {line}" for line in self.code[0]), *(f"    {s.name}_f[e] = {text};" for s, text in self.results)]
