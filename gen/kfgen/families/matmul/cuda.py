# SPDX-License-Identifier: Apache-2.0
"""The family `gemm` in CUDA. Forward: core/matmul/matmul.cuh makes the sums of a tile, whose kernel then reads what else there is at a result's place; where
blocks share a depth, another kernel does that. A left factor that is made of tensors goes to the workspace first, by a kernel over elements.
Backward: products of tensors as they are, which ops share, and kernels that go over elements (core/matmul/backward.cuh)."""

import functools
from dataclasses import replace

from kfgen.language.emit import emit
from kfgen.language.primitives import KEEP, KEEP_SCALE
from kfgen.model.schedule import CHEAP, NONE, OWN, Cuda, Instance

LAYOUTS = {
    "nt": 0,
    "tt": 1,
    "nn": 2,
    "tn": 3,
}  # which factors lie with lines along the depth: core/matmul/tile.cuh
# The tiles and how operands come to them, in the order of core/matmul/op.cuh, by bytes of an element.
TILES = {
    2: [
        ("MMA_128x128", "WHOLE"),
        ("MMA_64x64", "WHOLE"),
        ("MMA_128x128", "ANY"),
        ("MMA_64x64", "ANY"),
    ],
    4: [
        ("SIMT_128x128", "WHOLE"),
        ("SIMT_64x64", "WHOLE"),
        ("SIMT_128x128", "ANY"),
        ("SIMT_64x64", "ANY"),
    ],
    8: [("SIMT_64x64", "WHOLE"), ("SIMT_64x64", "ANY")],
}
FEW = "16", "64"  # rows of a kernel for few of them, at most: core/matmul/skinny.cuh
RING = (
    "WGMMA_128x128_PINGPONG",
    "WGMMA_128x192_PINGPONG",
    "WGMMA_128x256_COOPERATIVE",
    "WGMMA_128x128_COOPERATIVE",
    "WGMMA_128x96_COOPERATIVE",
)  # by slabs: core/matmul/hopper.cuh, in the order of kfi_ring_number
SINGLE_WAVE = RING[3:]  # tiles that KF_SCHEDULES may leave out
DOT = "kfi_dot"  # in gradients of the left factor: gemm.py


class Scheduled(Instance):
    """One that a file may leave out (KF_SCHEDULES), or that an emulation has not."""

    word = ""

    def __str__(self):
        return f"KFI_{self.word}_{'STATE_' if 'from_state' in self.arguments else ''}ADDRESS({self.name(OWN)})"


class Whole(Scheduled):
    word = "WHOLE"


class Any(Scheduled):
    word = "ANY"


class Old(Scheduled):
    """Of devices before sm_80."""

    word = "OLD"


class Hopper(Scheduled):
    """A kernel of sm_90a."""

    word = "HOPPER"


class SingleWave(Scheduled):
    """A kernel of sm_90a for grids of a single wave."""

    word = "SINGLE_WAVE"


BY = {"WHOLE": Whole, "ANY": Any}


class MatmulCuda(Cuda):
    @property
    def template(self):
        return "strips" if self.k.bwd else "kernel"

    def target(self, cheap):
        """Of gradients, some of which are added up, and cancel, the activation is exact."""
        k, found = self.k, super().target(cheap)
        if not k.bwd:
            return found

        def argument(x):
            return f"act < 0 ? {k.result}_f[e] : {x}" if k.by_result else x

        return replace(
            found,
            act=lambda x: f"kfi_act_{k.flavour}(kfi_tag<act>(), {x}, scalars)",
            act_bwd=lambda x, dy: (
                f"kfi_act_bwd_{k.flavour}(kfi_tag<act>(), {argument(x)}, {dy}, scalars)"
            ),
        )

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

    def number(self, stream):
        return (self.k.ins + self.k.outs).index(stream)

    @functools.cached_property
    def code(self):
        """(lines, a text for each result)."""
        env = {s.name: f"{s.name}_f[e]" for s in self.read} | {
            p.name: f"acc[{i}][e]" for i, p in enumerate(self.k.products)
        }
        env |= {KEEP: "keep[e]", KEEP_SCALE: self.keep_scale}
        return emit(
            self.k.graph,
            [self.k.roots[r] for r in self.store.roots],
            self.target(CHEAP),
            env,
            fixed={},
        )

    def code_of(self, number):
        """The same of one result."""
        env = {s.name: f"{s.name}_f[e]" for s in self.read} | {
            p.name: f"acc[{i}][e]" for i, p in enumerate(self.k.products)
        }
        return emit(
            self.k.graph,
            [self.k.roots[self.store.roots[number]]],
            self.target(CHEAP),
            env,
            fixed={},
        )

    @property
    def slab_results(self):
        """(result, its number), the saved ones first: what a slab's registers hold then is least."""
        return [(s, i) for i, s in enumerate(self.k.outs)][::-1]

    @property
    def read(self):
        """The tensors that are read at a result's place."""
        return [s for s in self.store.reads if s in self.k.ins]

    @property
    def results(self):
        return list(zip(self.k.outs, self.code[1]))

    @property
    def store_scalars(self):
        """Those that the kernel is given: its own, and beta."""
        read = self.k.graph.variables([self.k.roots[r] for r in self.store.roots])
        return [s for s in self.k.scalars if s in read] + self.k.betas

    @property
    def stores_act(self):
        """Whether what is done at a result's place has the activation in it. Where it has not, one kernel does for all of them."""
        graph = self.k.graph
        return any(
            graph.nodes[i].op in ("act", "act_bwd")
            for i in graph.reachable([self.k.roots[r] for r in self.store.roots])
        )

    @property
    def kernel_parameters(self):
        found = [
            "kfi_gemm_tensors t",
            "kfi_gemm g",
            *(f"{self.k.scalar_ctype} {s}" for s in self.store_scalars),
        ]
        return ", ".join(
            found
            + ["kfi_rng rng"] * self.k.keeps
            + (self.act_parameters if self.stores_act else [])
        )

    @property
    def finish_parameters(self):
        found = [
            "const kfi_gemm_cell *kfi_cell",
            "kf_i64 kfi_matrix",
            "const kfi_gemm &g",
            "const kfi_gemm_tensors &t",
            *(f"{self.k.scalar_ctype} {s}" for s in self.store_scalars),
        ]
        return ", ".join(
            found
            + ["const kfi_rng &rng"] * self.k.keeps
            + [f"const {self.k.scalar_struct} &scalars"] * self.stores_act
        )

    def finish_arguments_of(self, cells):
        """cells: where the first of the vectors' is."""
        return ", ".join([cells, "kfi_matrix", "g", "t", *self.store_scalars, *self.kept_arguments])

    @property
    def by_slabs(self):
        """Whether results leave by a warp's slabs (core/matmul/hopper.cuh): one product, elements of 2 bytes, both factors along the depth, a row's values
        of one tensor at most."""
        k = self.k
        return (
            self.by_wgmma
            and k.dtype.size == 2
            and self.layout == LAYOUTS["nt"]
            and len(k.products) == 1
            and not k.keeps
            and not k.accumulates
            and len(self.rows_read) < 2
            and all(s.kind in ("row", "elem") for s in self.read)
        )

    @property
    def rows_read(self):
        return [s for s in self.read if s.kind == "row"]

    @property
    def slab_parameters(self):
        return self.finish_parameters.replace("const kfi_gemm_cell *kfi_cell, ", "")

    @property
    def slab_arguments(self):
        return ", ".join(["kfi_matrix", "g", "t", *self.store_scalars, *self.kept_arguments])

    @property
    def kernel_arguments(self):
        kept = ["kfi_random"] * self.k.keeps + (self.act_arguments if self.stores_act else [])
        return ", ".join(
            f"&{n}" for n in ["kfi_t", "kfi_g", *self.store_scalars, *kept, "kfi_maps"]
        )

    @property
    def kept_arguments(self):
        return ["rng"] * self.k.keeps + ["scalars"] * self.stores_act

    @property
    def instances(self):
        """In the order of core/matmul/op.cuh, or of core/matmul/backward.cuh."""
        return self.strip_instances + self.sum_instances if self.k.bwd else self.own_instances

    @property
    def own_instances(self):
        name, state, size = (
            f"kfk_{self.k.shared}",
            ("from_state",) * self.k.keeps,
            self.k.dtype.size,
        )
        act = "act" if self.stores_act else "0"
        found = [
            BY[how](name, (act, f"KFI_TILE_{tile}", f"KFI_{how}", *state))
            for tile, how in TILES[size]
        ]
        if size == 2:
            found.append(Old(name, (act, "KFI_TILE_SIMT_64x64", "KFI_ANY", *state)))
        if self.by_wgmma or self.floats_by_wgmma:
            found.append(Hopper(f"kfk_{self.k.name}_wgmma", (act, *state)))
        few = (
            [Hopper(f"{name}_few", (act, rows, *state)) for rows in FEW]
            if self.few_by_wgmma
            else []
        )
        few += (
            [
                (SingleWave if tile in SINGLE_WAVE else Hopper)(
                    f"kfk_{self.k.name}_slabs", (act, f"KFI_TILE_{tile}")
                )
                for tile in RING
            ]
            if self.by_slabs
            else []
        )
        return [*found, Instance(f"{name}_joint", (act, *state)), *self.strip_instances, *few]

    @property
    def by_wgmma(self):
        """Whether there is a kernel for sm_90a: core/matmul/hopper.cuh."""
        return not self.k.bwd and (self.k.dtype.size == 2 or self.rounds_in_place)

    @property
    def rounds_in_place(self):
        """Whether both factors lie along the depth: tf32 goes as elements of 2 bytes then."""
        return self.k.rounded and self.layout == LAYOUTS["nt"]

    @property
    def multiplied(self):
        """What products are made of, of elements as they are stored."""
        return f"KFI_OF_{(self.k.dtypes[0] if self.k.rounded else self.k.dtype.word).upper()}"

    @property
    def wgmma_tile(self):
        return "KFI_TILE_WGMMA_TF32" if self.k.rounded else "KFI_TILE_WGMMA_128x128_PINGPONG"

    @property
    def parts(self):
        """Numbers of tf32 that a float is the sum of."""
        return 1 if self.k.rounded else 2

    @property
    def floats_by_wgmma(self):
        """Whether there is a kernel of floats for sm_90a: core/matmul/tf32.cuh."""
        return not self.k.bwd and self.k.dtype.word == "f32" and not self.rounds_in_place

    @property
    def few_by_wgmma(self):
        """Whether there are kernels of few rows for sm_90a: core/matmul/skinny.cuh."""
        return (
            self.by_wgmma
            and not self.k.rounded
            and (len(self.k.products) == 1 or not self.layout & LAYOUTS["nn"])
        )

    @property
    def product_kernels(self):
        """Kernels of a product, without the one that joins split depths."""
        return len(TILES[self.k.dtype.size]) + {2: 2, 4: 1, 8: 0}[self.k.dtype.size]

    @property
    def stage_instances(self):
        if not self.k.bwd:
            products = self.product_kernels
            found, strips = self.own_instances, len(self.strip_instances)
            return [
                *([i] for i in self.strip_instances),
                found[:products] + found[products + 1 + strips :],
                [found[products]],
            ]
        size = self.product_kernels
        products = [self.sum_instances[i * (size + 1) :][: size + 1] for i in range(2)]
        found = [
            *([i] for i in self.strip_instances),
            *(part for of in products for part in (of[:-1], of[-1:])),
            self.sum_instances[-1:],
        ]
        return [stage for stage in found if stage != [NONE]]

    # ---- backward

    @property
    def own_strips(self):
        """Those whose kernels are written for it."""
        return [] if self.k.rounded else self.strips

    @property
    def strips(self):
        """What goes over elements, backward in the order of core/matmul/backward.cuh; None where there is nothing to do."""
        seams = {seam.word: seam for seam in self.k.seams}
        if not self.k.bwd:
            return [self.loads] if self.loads else []
        return [seams["slopes"], seams.get("inputs") if self.loads else None, self.loads]

    def strip_name(self, seam):
        return f"kfk_{self.k.shared}_{seam.word}"

    @property
    def strip_instances(self):
        state = ("from_state",) * self.k.keeps
        return [
            Instance(self.strip_name(seam), ("act", *state)) if seam else NONE
            for seam in self.strips
        ]

    @property
    def sum_instances(self):
        """Of products for the inputs and for the weights, and of totals. Of a left factor that is made of tensors a strip joins what blocks left of
        the product for the inputs."""
        size, own, wide = (
            self.k.dtype.size,
            *(f"KFI_OF_{d.word.upper()}" for d in (self.k.dtype, self.k.second)),
        )
        found = []
        for of, layout, joined in (
            (own, self.layouts[0], not self.loads),
            (wide, self.layouts[1], True),
        ):
            found += [
                BY[how]("kfk_gemm_sum", (own, of, f"KFI_TILE_{tile}", f"KFI_{how}", str(layout)))
                for tile, how in TILES[size]
            ]
            if size == 2:
                found.append(
                    Old("kfk_gemm_sum", (own, of, "KFI_TILE_SIMT_64x64", "KFI_ANY", str(layout)))
                )
                found.append(Hopper("kfk_gemm_sum_wgmma", (own, of, str(layout))))
            if size == 4 and self.k.rounded and layout == LAYOUTS["nt"]:
                found.append(Hopper("kfk_gemm_sum_wgmma", (self.multiplied, of, str(layout))))
            elif size == 4:
                found.append(Hopper("kfk_gemm_floats_wgmma", (str(layout), str(self.parts))))
            found.append(Instance("kfk_gemm_sum_joint", (own, of)) if joined else NONE)
        return [
            *found,
            Instance("kfk_gemm_totals", (own, wide))
            if any(map(self.is_vector, self.k.outs))
            else NONE,
        ]

    @property
    def layouts(self):
        """How the factors of the products lie, for the inputs and for the weights: core/matmul/tile.cuh."""
        return {"nt": (2, 3), "nn": (0, 3), "tn": (0, 2), "tt": (1, 1)}[self.k.form]

    @property
    def strip_parameters(self):
        found = [
            "kfi_gemm_tensors t",
            "kfi_strip s",
            *(f"{self.k.scalar_ctype} {s}" for s in self.k.used_scalars),
        ]
        return ", ".join(found + ["kfi_rng rng"] * self.k.keeps + self.act_parameters)

    @property
    def strip_arguments(self):
        return self.launched("kfi_t", "kfi_s", *self.k.used_scalars)

    def strip_reads(self, seam):
        return [s for s in seam.reads if s in self.k.ins]

    def strip_ahead(self, seam):
        """Whether the next row is on its way while one is computed. Of more tensors four blocks of an SM would not have registers for it."""
        return (
            self.k.bwd
            and DOT not in seam.reads
            and sum(s.reads != "result" for s in self.strip_reads(seam)) <= 2
        )

    def strip_guard(self, stream):
        found = {"act": ["kfi_act_bwd_reads(kfi_tag<act>())"], "result": ["act < 0"]}.get(
            stream.reads, []
        )
        found = found + [f"t.p[{self.number(stream)}]"] * (stream.absent is not None)
        return f"if ({' && '.join(found)}) " if found else ""

    def strip_code(self, seam):
        """(lines, [(what is made, its text)])."""
        env = {s.name: f"{s.name}_f[e]" for s in self.strip_reads(seam)} | {
            DOT: "dot_f[e]",
            KEEP: "keep[e]",
            KEEP_SCALE: self.keep_scale,
        }
        lines, texts = emit(
            self.k.graph,
            [self.k.roots[r] for r in seam.roots],
            self.target(frozenset() if self.k.bwd else CHEAP),
            env,
            fixed={},
        )
        return lines, list(zip(seam.makes, texts))

    def strip_keeps(self, seam):
        return KEEP in self.k.graph.variables([self.k.roots[r] for r in seam.roots])

    def is_vector(self, made):
        return getattr(made, "role", "") == "sum" and made.kind in ("row", "depth")

    def strip_sums(self, seam):
        return [m for m in seam.makes if self.is_vector(m)]

    def is_tensor(self, made):
        return made in self.k.outs

    def letters(self, streams):
        return "".join(chr(ord("a") + self.number(s)) for s in streams)

    def touched(self, seam):
        return (
            self.letters(
                [
                    *self.strip_reads(seam),
                    *(m for m in seam.makes if self.is_tensor(m) and not self.is_vector(m)),
                ]
            )
            if seam
            else ""
        )

    @property
    def made(self):
        """The tensors that the strips of slopes and of inputs make."""
        inputs = [s for s in self.k.outs if s.kind in ("left", "depth")]
        return [
            self.letters([m for m in self.strips[0].makes if self.is_tensor(m)]),
            self.letters(inputs),
        ]

    @property
    def passes_on(self):
        """Whether the result's gradient is that of the one product: no slopes are made then."""
        k = self.k
        calls = any(
            k.graph.nodes[i].op in ("act", "act_bwd")
            for i in k.graph.reachable([p.slope for p in k.products])
        )
        none = next((a for a in k.acts if a.name == "none"), None)
        return (
            "false"
            if not k.passed or (calls and not none)
            else f"kfi_act == {none.id}"
            if calls
            else "true"
        )

    def place(self, name):
        return next((i for i, s in enumerate(self.k.ins + self.k.outs) if s.name == name), -1)

    @property
    def passed_on(self):
        """What the run function hands to that of the gradient by the result."""
        k = self.k
        found = (
            [a.name for a in k.tensor_arguments]
            + k.sizes
            + [a.name for a in k.stride_arguments]
            + k.scalars
            + k.betas
        )
        found += ["p", "kfi_seed", "kfi_offset", "seed", "offset"] if k.dropout else []
        return ", ".join(
            [*found, *(a.name for a in k.workspace_arguments), "stream", "kfi_scalars"]
        )

    @property
    def sides(self):
        """Whether the left factor and the weights lie as [depth, ...], as C writes them."""
        return ", ".join(
            "true" if found else "false"
            for found in (self.k.form[0] == "t", self.k.form[1] == "n", bool(self.loads))
        )

    @property
    def workspace_bytes(self):
        if self.k.bwd:
            sums = ", ".join(
                str(sum(s.kind == kind for s in self.k.outs)) for kind in ("row", "depth")
            )
            return f"kfi_gemm_backward_workspace(batch, rows, cols, depth, {self.k.dtype.size}, {len(self.k.products)}, {self.sides}, {sums})"
        loads = str(bool(self.loads)).lower()
        return f"kfi_gemm_forward_workspace(batch, rows, cols, depth, {len(self.k.products)}, {self.k.dtype.size}, {self.layout}, {loads})"

    def listing(self):
        """What is computed, in order, for a reader."""
        found = [line for seam in self.strips if seam for line in self._strip_listing(seam)]
        if self.k.bwd:
            return found
        return [
            *found,
            "store:",
            *(f"    {line}" for line in self.code[0]),
            *(f"    {s.name}_f[e] = {text};" for s, text in self.results),
        ]

    def _strip_listing(self, seam):
        lines, texts = self.strip_code(seam)
        named = [(getattr(m, "name", m), text) for m, text in texts]
        return [
            f"{seam.word}:",
            *(f"    {line}" for line in lines),
            *(f"    {name}_f[e] = {text};" for name, text in named),
        ]
