# SPDX-License-Identifier: Apache-2.0
"""The CUDA schedule of the matmul family.

Forward: core/matmul/matmul.cuh accumulates a tile, and the op's epilogue runs on vectors of it.
With split-K a second kernel reduces the partial tiles. Where `load` makes the left factor, an
elementwise pass stores it in the workspace first. Backward: products of plain tensors, whose
kernels all ops of a dtype share, and elementwise passes (core/matmul/backward.cuh).
"""

import functools
from dataclasses import replace

from kfgen.families.matmul.instances import LAYOUTS, Instances
from kfgen.families.matmul.steps import Steps
from kfgen.language.emit import emit
from kfgen.language.primitives import KEEP, KEEP_SCALE
from kfgen.model.schedule import CHEAP, Cuda

DOT = "kfi_dot"  # see kernel.py
LETTERS = {code: letters.upper() for letters, code in LAYOUTS.items()}


class MatmulCuda(Instances, Steps, Cuda):
    @property
    def template(self):
        return "strips" if self.k.bwd else "kernel"

    def target(self, cheap):
        """The backward uses the exact activation: its results are summed and may cancel."""
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
        """The index of a tensor among the call's tensors."""
        return (self.k.ins + self.k.outs).index(stream)

    def pointer(self, stream):
        return f"(const {self.k.dtype.device} *)t.p[{self.number(stream)}]"

    def matrix(self, stream):
        """The current matrix of a tensor."""
        return f"{self.pointer(stream)} + kfi_matrix * t.matrix[{self.number(stream)}]"

    def offset(self, stream, coord):
        """The offset of a vector of results in a tensor."""
        return f"kfi_gemm_offset(t, {self.number(stream)}, {coord}, kfi_matrix)"

    def _operand(self, first, second):
        numbers = f"{self.number(first)}, {self.number(second)}"
        return f"kfi_gemm_matrix_of<{self.k.dtype.size}>(t, {numbers}, kfi_matrix)"

    @property
    def operand_a(self):
        return self._operand(self.left, self.left)

    @property
    def operand_b(self):
        return self._operand(self.k.products[0].weight, self.k.products[-1].weight)

    def _epilogue(self, roots):
        env = {s.name: f"{s.name}_f[e]" for s in self.read} | {
            p.name: f"acc[{i}][e]" for i, p in enumerate(self.k.products)
        }
        env |= {KEEP: "keep[e]", KEEP_SCALE: self.keep_scale}
        return emit(
            self.k.graph, [self.k.roots[r] for r in roots], self.target(CHEAP), env, fixed={}
        )

    @functools.cached_property
    def code(self):
        """The epilogue: (lines, the expression of each result)."""
        return self._epilogue(self.store.roots)

    def code_of(self, number):
        """The epilogue of one result."""
        return self._epilogue([self.store.roots[number]])

    @property
    def slab_results(self):
        """(result, its number), saved ones first, which keeps the fewest values in registers."""
        return [(s, i) for i, s in enumerate(self.k.outs)][::-1]

    @property
    def read(self):
        """Tensors that the epilogue reads."""
        return [s for s in self.store.reads if s in self.k.ins]

    @property
    def results(self):
        return list(zip(self.k.outs, self.code[1]))

    @property
    def store_scalars(self):
        """Scalars that the epilogue reads, and beta."""
        read = self.k.graph.variables([self.k.roots[r] for r in self.store.roots])
        return [s for s in self.k.scalars if s in read] + self.k.betas

    @property
    def stores_act(self):
        """Returns whether the epilogue calls the activation; if not, activations share kernels."""
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
    def epilogue_parameters(self):
        found = [
            "const kfi_gemm_coord *kfi_coord",
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

    def epilogue_arguments(self, coords):
        """coords: pointer to the first vector."""
        return ", ".join(
            [coords, "kfi_matrix", "g", "t", *self.store_scalars, *self.kept_arguments]
        )

    @property
    def by_slabs(self):
        """Returns whether kernels store through slabs (core/matmul/slab.cuh).

        They take one product of 2-byte elements, and at most one row operand.
        """
        k = self.k
        return (
            self.by_wgmma
            and k.dtype.size == 2
            and len(k.products) == 1
            and not k.keeps
            and len(self.rows_read) < 2
            and all(s.kind in ("row", "elem") for s in self.read)
        )

    @property
    def rows_read(self):
        return [s for s in self.read if s.kind == "row"]

    @property
    def slab_parameters(self):
        return self.epilogue_parameters.replace("const kfi_gemm_coord *kfi_coord, ", "")

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
    def by_wgmma(self):
        """Returns whether core/matmul/hopper.cuh makes the product on sm_90a."""
        return not self.k.bwd and (self.k.dtype.size == 2 or self.rounds_in_place)

    @property
    def rounds_in_place(self):
        """Returns whether TMA rounds to tf32: both operands are K-contiguous."""
        return self.k.rounded and self.layout == LAYOUTS["nt"]

    @property
    def multiplied(self):
        """The element type of the products."""
        return f"KFI_OF_{(self.k.dtypes[0] if self.k.rounded else self.k.dtype.word).upper()}"

    @property
    def wgmma_tile(self):
        return "KFI_TILE_WGMMA_TF32" if self.k.rounded else "KFI_TILE_WGMMA_128x128_PINGPONG"

    @property
    def parts(self):
        """The number of tf32 parts of an element."""
        return 1 if self.k.rounded else 2

    @property
    def by_3xtf32(self):
        """Returns whether core/matmul/tf32.cuh makes the product on sm_90a."""
        return not self.k.bwd and self.k.dtype.word == "f32" and not self.rounds_in_place

    @property
    def skinny_by_wgmma(self):
        """Returns whether there are skinny-M kernels for sm_90a: core/matmul/skinny.cuh."""
        return (
            self.by_wgmma
            and not self.k.rounded
            and (len(self.k.products) == 1 or not self.layout & LAYOUTS["nn"])
        )

    @property
    def own_passes(self):
        """Passes whose kernels are this function's, not another dtype's."""
        return [] if self.k.rounded else self.passes

    @property
    def passes(self):
        """The elementwise passes, in the order of core/matmul/backward.cuh; None: no such pass."""
        seams = {seam.word: seam for seam in self.k.seams}
        if not self.k.bwd:
            return [self.loads] if self.loads else []
        return [seams["dacc"], seams.get("inputs") if self.loads else None, self.loads]

    def pass_name(self, seam):
        return f"kfk_{self.k.shared}_{seam.word}"

    @property
    def layouts(self):
        """Layouts of the backward's products, for the inputs and for the weights."""
        return {"nt": (2, 3), "nn": (0, 3), "tn": (0, 2), "tt": (1, 1)}[self.k.form]

    @property
    def pass_parameters(self):
        found = [
            "kfi_gemm_tensors t",
            "kfi_gemm_pass s",
            *(f"{self.k.scalar_ctype} {s}" for s in self.k.used_scalars),
        ]
        return ", ".join(found + ["kfi_rng rng"] * self.k.keeps + self.act_parameters)

    @property
    def pass_arguments(self):
        return self.launched("kfi_t", "kfi_s", *self.k.used_scalars)

    def pass_reads(self, seam):
        return [s for s in seam.reads if s in self.k.ins]

    def pass_prefetches(self, seam):
        """Returns whether the pass prefetches the next row.

        With more than two tensors the registers would limit occupancy to under four blocks per SM.
        """
        return (
            self.k.bwd
            and DOT not in seam.reads
            and sum(s.reads != "result" for s in self.pass_reads(seam)) <= 2
        )

    def pass_offset(self, stream, row):
        return f"kfi_pass_offset(t, {self.number(stream)}, at, {row})"

    def pass_guard(self, stream):
        found = {"act": ["kfi_act_bwd_reads(kfi_tag<act>())"], "result": ["act < 0"]}.get(
            stream.reads, []
        )
        found = found + [f"t.p[{self.number(stream)}]"] * (stream.absent is not None)
        return f"if ({' && '.join(found)}) " if found else ""

    def pass_code(self, seam):
        """(lines, [(output, its expression)])."""
        env = {s.name: f"{s.name}_f[e]" for s in self.pass_reads(seam)} | {
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

    def pass_keeps(self, seam):
        return KEEP in self.k.graph.variables([self.k.roots[r] for r in seam.roots])

    def is_vector(self, made):
        return getattr(made, "role", "") == "sum" and made.kind in ("row", "depth")

    def pass_sums(self, seam):
        return [m for m in seam.makes if self.is_vector(m)]

    def is_tensor(self, made):
        return made in self.k.outs

    def letters(self, streams):
        return "".join(chr(ord("a") + self.number(s)) for s in streams)

    def touched(self, seam):
        return (
            self.letters(
                [
                    *self.pass_reads(seam),
                    *(m for m in seam.makes if self.is_tensor(m) and not self.is_vector(m)),
                ]
            )
            if seam
            else ""
        )

    @property
    def made(self):
        """Letters of the tensors that the passes dacc and inputs make."""
        inputs = [s for s in self.k.outs if s.kind in ("left", "depth")]
        return [
            self.letters([m for m in self.passes[0].makes if self.is_tensor(m)]),
            self.letters(inputs),
        ]

    @property
    def dout_is_dacc(self):
        """Whether dout is dacc, as a C expression, empty if never: then no dacc is computed."""
        k = self.k
        calls = any(
            k.graph.nodes[i].op in ("act", "act_bwd")
            for i in k.graph.reachable([p.dacc for p in k.products])
        )
        none = next((a for a in k.acts if a.name == "none"), None)
        return (
            ""
            if not k.dout_as_dacc or (calls and not none)
            else f"kfi_act == {none.id}"
            if calls
            else "true"
        )

    def place(self, name):
        return next((i for i, s in enumerate(self.k.ins + self.k.outs) if s.name == name), -1)

    @property
    def passed_on(self):
        """Arguments that the run function passes to that of the gradient by the result."""
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
        """Whether A is transposed, B is transposed, and `load` makes the left factor."""
        return self.k.form[0] == "t", self.k.form[1] == "n", bool(self.loads)

    @property
    def fields(self):
        """Fields of kfi_gemm_op or kfi_gemm_back: (name, value, comment). Tensors are indices among
        the arguments, or letters from 'a' on.
        """
        return [
            ("size", self.k.dtype.size, "bytes of an element"),
            ("type", self.multiplied, ""),
            *(self._backward_fields if self.k.bwd else self._forward_fields),
        ]

    @property
    def _forward_fields(self):
        weights = [p.weight.name for p in self.k.products]
        slabs = [self.number(s) for s, _ in self.results] if self.by_slabs else []
        return [
            ("left", self.number(self.left), self.left.name),
            ("products", len(weights), ""),
            *self._indices("weights", weights),
            ("layout", self.layout, LETTERS[self.layout]),
            ("loads", bool(self.loads), "`load` makes the left factor"),
            self._letters("touched", self.touched(self.loads)),
            ("slabs", len(slabs), "results stored through slabs"),
            *((f"results[{i}]", number, "") for i, number in enumerate(slabs)),
        ]

    @property
    def _backward_fields(self):
        k, weights = self.k, [p.weight.name for p in self.k.products]
        transposed_a, transposed_b, loads = self.sides
        return [
            ("second", k.wide.size, "bytes of an element of the weights' gradients"),
            ("products", len(weights), ""),
            ("left", self.number(self.left), self.left.name),
            ("dleft", self.place(f"d{self.left.name}"), ""),
            *self._indices("weights", weights),
            *self._indices("dweights", [f"d{name}" for name in weights]),
            ("a_transposed", transposed_a, ""),
            ("b_transposed", transposed_b, ""),
            ("loads", loads, "`load` makes the left factor"),
            *(
                (f"layouts[{i}]", layout, f"{LETTERS[layout]}, for the {what}")
                for i, (layout, what) in enumerate(zip(self.layouts, ("inputs", "weights")))
            ),
            *(
                self._letters(f"touched[KFI_PASS_{word}]", self.touched(seam))
                for word, seam in zip(("DACC", "INPUTS", "LEFT"), self.passes)
            ),
            *(self._letters(f"made[{i}]", letters) for i, letters in enumerate(self.made)),
            ("dout", self.place(k.dout_as_dacc), ""),
            ("dout_is_dacc", self.dout_is_dacc, ""),
        ]

    def _letters(self, field, letters):
        """The field of a set of tensors, letters from 'a' on; its comment names them."""
        tensors = self.k.ins + self.k.outs
        names = [tensors[ord(letter) - ord("a")].name for letter in letters]
        return field, letters and f'"{letters}"', " ".join(names)

    def _indices(self, field, words):
        """Fields of the indices of one tensor or two."""
        return [(f"{field}[{i}]", self.place(word), word) for i, word in enumerate(words)]

    @property
    def workspace_bytes(self):
        if self.k.bwd:
            sums = ", ".join(
                str(sum(s.kind == kind for s in self.k.outs)) for kind in ("row", "depth")
            )
            sides = ", ".join(str(side).lower() for side in self.sides)
            types = f"{self.k.dtype.size}, {len(self.k.products)}, {sides}"
            return f"kfi_gemm_backward_workspace(batch, rows, cols, depth, {types}, {sums})"
        loads = str(bool(self.loads)).lower()
        types = f"{len(self.k.products)}, {self.k.dtype.size}, {self.layout}, {loads}"
        return f"kfi_gemm_forward_workspace(batch, rows, cols, depth, {types})"

    def listing(self):
        """The computation in order, for readers."""
        found = [line for seam in self.passes if seam for line in self._pass_listing(seam)]
        if self.k.bwd:
            return found
        return [
            *found,
            "store:",
            *(f"    {line}" for line in self.code[0]),
            *(f"    {s.name}_f[e] = {text};" for s, text in self.results),
        ]

    def _pass_listing(self, seam):
        lines, texts = self.pass_code(seam)
        named = [(getattr(m, "name", m), text) for m, text in texts]
        return [
            f"{seam.word}:",
            *(f"    {line}" for line in lines),
            *(f"    {name}_f[e] = {text};" for name, text in named),
        ]
