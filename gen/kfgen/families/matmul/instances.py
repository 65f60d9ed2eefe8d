# SPDX-License-Identifier: Apache-2.0
"""The kernels of a matmul function in CUDA: tiles, schedules and template arguments, in the order
of the launchers' tables."""

from kfgen.model.steps import NONE, OWN, Instance

# Layouts by the operands' letters, as KFI_A_TRANSPOSED and KFI_B_TRANSPOSED (core/matmul/tile.cuh).
LAYOUTS = {"nt": 0, "tt": 1, "nn": 2, "tn": 3}
# Tiles of the portable kernels and how they load operands, by bytes of an element, in the order of
# core/matmul/host.cuh.
TILES = {
    2: [
        ("MMA_128x128", "CP_ASYNC"),
        ("MMA_64x64", "CP_ASYNC"),
        ("MMA_128x128", "VIA_REGISTERS"),
        ("MMA_64x64", "VIA_REGISTERS"),
    ],
    4: [
        ("SIMT_128x128", "CP_ASYNC"),
        ("SIMT_64x64", "CP_ASYNC"),
        ("SIMT_128x128", "VIA_REGISTERS"),
        ("SIMT_64x64", "VIA_REGISTERS"),
    ],
    8: [("SIMT_64x64", "CP_ASYNC"), ("SIMT_64x64", "VIA_REGISTERS")],
}
SKINNY = "16", "64"  # N of the kernels with skinny M (core/matmul/skinny.cuh)
SKINNY_F32 = "8", "16", "32", "64"  # kfi_skinny_f32_rows (core/matmul/skinny_f32_host.cuh)
# Tiles of the kernels that store through slabs, in the order of kfi_slab_kernel_index.
SLAB_TILES = (
    "WGMMA_128x128_PINGPONG",
    "WGMMA_128x192_PINGPONG",
    "WGMMA_128x256_COOPERATIVE",
    "WGMMA_128x128_COOPERATIVE",
    "WGMMA_128x96_COOPERATIVE",
)
SINGLE_WAVE = SLAB_TILES[3:]  # tiles that KF_SCHEDULES may leave out


class Scheduled(Instance):
    """An instance that KF_SCHEDULES or the emulation may leave out."""

    word = ""

    def __str__(self):
        state = "STATE_" if "from_state" in self.arguments else ""
        return f"KFI_{self.word}_{state}ADDRESS({self.name(OWN)})"


class CpAsync(Scheduled):
    word = "CP_ASYNC"


class ViaRegisters(Scheduled):
    word = "VIA_REGISTERS"


class PreSm80(Scheduled):
    """A kernel for devices before sm_80."""

    word = "PRE_SM80"


class Hopper(Scheduled):
    """A kernel for sm_90a."""

    word = "HOPPER"


class SingleWave(Scheduled):
    """A kernel for sm_90a and grids of a single wave."""

    word = "SINGLE_WAVE"


LOADING = {"CP_ASYNC": CpAsync, "VIA_REGISTERS": ViaRegisters}


class Instances:
    """The part of MatmulCuda that lists kernels."""

    @property
    def instances(self):
        """The launchers' table: see core/matmul/op.cuh and core/matmul/backward.cuh."""
        return self.pass_instances + self.sum_instances if self.k.bwd else self.own_instances

    @property
    def own_instances(self):
        """A forward's kernels: product, reduction of split-K, passes, then skinny M and slabs."""
        k = self.k
        name, state = f"kfk_{k.shared}", ("from_state",) * k.keeps
        act = "act" if self.stores_act else "0"
        found = [
            LOADING[how](name, (act, f"KFI_TILE_{tile}", f"KFI_{how}", *state))
            for tile, how in TILES[k.dtype.size]
        ]
        if k.dtype.size == 2:
            found.append(PreSm80(name, (act, "KFI_TILE_SIMT_64x64", "KFI_VIA_REGISTERS", *state)))
        if self.by_wgmma or self.by_3xtf32:
            found.append(Hopper(f"kfk_{k.name}_wgmma", (act, *state)))
        more = []
        if self.skinny_by_wgmma:
            more += [Hopper(f"{name}_skinny", (act, n, *state)) for n in SKINNY]
        if self.skinny_by_mma:
            more += [Hopper(f"kfk_{k.name}_skinny", (act, n, *state)) for n in SKINNY_F32]
        # Boxes of 64 columns of a transposed B do not divide the last tile.
        tiles = SLAB_TILES[:-1] if self.layout & LAYOUTS["nn"] else SLAB_TILES
        for tile in tiles if self.by_slabs else ():
            kind = SingleWave if tile in SINGLE_WAVE else Hopper
            more.append(kind(f"kfk_{k.name}_slabs", (act, f"KFI_TILE_{tile}")))
        return [*found, Instance(f"{name}_reduce", (act, *state)), *self.pass_instances, *more]

    @property
    def skinny_by_mma(self):
        """Returns whether there are skinny-M kernels for sm_90a: core/matmul/skinny_f32.cuh."""
        k = self.k
        floats = k.rounded or k.dtype.word == "f32"
        return not k.bwd and floats and self.layout == LAYOUTS["nt"]

    @property
    def product_kernels(self):
        """The number of a product's kernels, without the one that reduces split-K."""
        return len(TILES[self.k.dtype.size]) + {2: 2, 4: 1, 8: 0}[self.k.dtype.size]

    @property
    def pass_instances(self):
        state = ("from_state",) * self.k.keeps
        return [
            Instance(self.pass_name(seam), ("act", *state)) if seam else NONE
            for seam in self.passes
        ]

    @property
    def sum_instances(self):
        """A backward's products for the inputs and for the weights, then the totals.

        Where `load` makes the left factor, a pass reduces the partial sums of the first product.
        """
        k = self.k
        own, wide = (f"KFI_OF_{d.word.upper()}" for d in (k.dtype, k.wide))
        found = []
        for of, layout, reduced in (
            (own, self.layouts[0], not self.loads),
            (wide, self.layouts[1], True),
        ):
            found += self._product_instances(own, of, layout)
            found.append(Instance("kfk_gemm_sum_reduce", (own, of)) if reduced else NONE)
        totals = any(map(self.is_vector, k.outs))
        return [*found, Instance("kfk_gemm_totals", (own, wide)) if totals else NONE]

    def _product_instances(self, own, of, layout):
        size, word = self.k.dtype.size, str(layout)
        found = [
            LOADING[how]("kfk_gemm_sum", (own, of, f"KFI_TILE_{tile}", f"KFI_{how}", word))
            for tile, how in TILES[size]
        ]
        if size == 2:
            simt = (own, of, "KFI_TILE_SIMT_64x64", "KFI_VIA_REGISTERS", word)
            found.append(PreSm80("kfk_gemm_sum", simt))
            found.append(Hopper("kfk_gemm_sum_wgmma", (own, of, word)))
        elif size == 4 and self.k.rounded and layout == LAYOUTS["nt"]:
            found.append(Hopper("kfk_gemm_sum_wgmma", (self.multiplied, of, word)))
        elif size == 4:
            found.append(Hopper("kfk_gemm_floats_wgmma", (word, str(self.parts))))
        return found
