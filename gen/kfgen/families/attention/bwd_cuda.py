# SPDX-License-Identifier: Apache-2.0
"""CUDA schedule of attention's backward: the kernels of core/attention/bwd_*.cuh, in the order of a
launcher's table (core/attention/bwd_op.cuh).
"""

from kfgen.families.attention.cuda import WIDTHS, AttentionCuda, Tile
from kfgen.model import steps
from kfgen.model.steps import Instance, Launch, Step

STATISTICS, SUMS = "workspace.statistics", "workspace.sums"
PARTIAL = "workspace.partial"
TILES = ("64", "128")  # head dimensions of tiles of wgmma
WGMMA = ("bwd_prepare", "bwd_hopper", "bwd_finish")  # kernels of a tile
QUERIES, KEYS = "0", "1"  # rows of a block
ROWS = 3  # index of that argument of a tile


class AttentionBwdCuda(AttentionCuda):
    core = ("kf/core/attention/bwd_op",)

    def kernel(self, name, *arguments):
        return Instance(f"kfk_attention_{name}{self.k.suffix}", (self.type, *arguments))

    def tile(self, name, rows, word, tile):
        """Returns the kernel whose blocks own queries or keys (`rows`)."""
        arguments = (self.type, tile, self.score, rows, *self.drop, word)
        return Tile(f"kfk_attention_bwd_{name}{self.k.suffix}", arguments)

    @property
    def small(self):
        return self.k.dtype.size == 2

    @property
    def has_wgmma(self):
        """Whether calls may take kernels for sm_90a: plain scores of one length, no dropout."""
        return self.small and self.k.plain and not (self.k.packed or self.k.keeps)

    @property
    def wgmma(self):
        """Kernels for sm_90a, by tile."""
        if not self.has_wgmma:
            return [steps.NONE] * len(WGMMA) * len(TILES)
        return [
            Tile(f"kfk_attention_{name}", (self.type, f"KFI_ATTENTION_WGMMA_{w}", f"WGMMA_{w}"))
            for w in TILES
            for name in WGMMA
        ]

    def _of_wgmma(self, name):
        """Instances of one of the kernels."""
        return tuple(self.wgmma[WGMMA.index(name) :: len(WGMMA)])

    @property
    def mma(self):
        """Kernels for sm_80 and later."""
        return [
            self.tile("mma", rows, f"BWD_MMA_{w}", f"KFI_ATTENTION_MMA_{w}")
            for w in WIDTHS
            for rows in (QUERIES, KEYS)
        ]

    @property
    def simt(self):
        """Kernels for any device. From sm_80 on 2-byte elements need the larger alone, for more
        than 256 dimensions.
        """
        words = ("PRE_SM80_ANY", "ANY_256") if self.small else ("ANY_64", "ANY_WIDE")
        return [
            self.tile("simt", rows, word, str(i))
            for i, word in enumerate(words)
            for rows in (QUERIES, KEYS)
        ]

    @property
    def outside(self):
        """The kernel that clears gradients of scores outside of packed sequences."""
        if not (self.k.packed and self.k.score_gradients):
            return []
        return [Instance("kfk_attention_bwd_outside", (self.type, self.score))]

    def per_head(self, stream):
        """Returns the kernel that sums a gradient with one number per head."""
        word = "sink" if stream is self.k.sink_gradient else "head"
        of = f"KFI_OF_{stream.dtype.word.upper()}"
        return Instance(f"kfk_attention_bwd_{word}", (self.type, of))

    @property
    def heads(self):
        """Kernels of gradients with one number per head, in the order of the results."""
        return [self.per_head(s) for s in self.k.outputs if s.kind == "head"]

    @property
    def instances(self):
        """Kernels by wgmma, statistics and gradients by mma.sync, the same by FMAs, `outside`,
        `heads`.
        """
        mma = [*self.wgmma, self.kernel("delta", "1"), *self.mma] if self.small else []
        own = [*self.outside, *self.heads]
        return [*mma, self.kernel("delta", "0"), *self.simt, *own]

    @property
    def buffers(self):
        found = {STATISTICS: "shift, factor and delta of each query"}
        if self.has_wgmma:
            found[SUMS] = "sums of dq in float, and the next addend and item of work"
        if self.k.head_gradients:
            found[PARTIAL] = "sums of gradients per head, by blocks of queries"
        return found

    @property
    def workspace_bytes(self):
        size, wgmma = self.k.dtype.acc.size, str(self.has_wgmma).lower()
        sums = len(self.k.head_gradients)
        return f"kfi_attention_bwd{self.k.suffix}_workspace(shape, {size}, {wgmma}, {sums})"

    def _launches(self, rows, heads):
        """Launches of one gradient. rows: QUERIES or KEYS."""
        batch = "" if self.k.packed else " x batch"
        word = "keys" if rows == KEYS else "queries"
        grid = f"blocks of {word} x {heads}{batch}"
        of = {
            name: tuple(t for t in tiles if t.arguments[ROWS] == rows)
            for name, tiles in (("mma", self.mma), ("simt", self.simt))
        }
        found = [Launch(of["simt"], f"{grid} x slices", "128", shared="slices of rows")]
        if self.small:
            found.insert(0, Launch(of["mma"], grid, "128", shared="own rows, stages of others"))
        if self.has_wgmma and rows == QUERIES:
            found.insert(0, Launch(self._of_wgmma("bwd_finish"), grid, "256"))
        return tuple(found)

    @property
    def _statistics(self):
        """Launches of the first step."""
        rows = "blocks of queries x heads" + ("" if self.k.packed else " x batch")
        deltas = [self.kernel("delta", n) for n in (("1", "0") if self.small else ("0",))]
        found = (Launch(tuple(deltas), rows, "128"),)
        if self.has_wgmma:
            found = (Launch(self._of_wgmma("bwd_prepare"), rows, "256"), *found)
        return found

    def _sums(self, read, by_key):
        """The step of wgmma alone."""
        launch = Launch(
            self._of_wgmma("bwd_hopper"),
            "persistent: at most one block per SM",
            "384",
            shared="K, V, and stages of Q, dout, dS and dQ",
            maps=(
                *(self.k.of_kind(kind).name for kind in ("query", "key", "value")),
                "dout",
                *by_key,
            ),
            early=False,
        )
        return Step(
            "computes gradients by blocks of keys, and sums of dq",
            (launch,),
            (*read, STATISTICS, SUMS),
            (*by_key, SUMS),
            "the kernels use wgmma",
        )

    @property
    def steps(self):
        k = self.k
        read = steps.names(k.inputs)
        by_key = tuple(s.name for s in k.outputs if s.kind in ("key", "value"))
        by_query = tuple(s.name for s in k.outputs if s.kind in ("query", "score"))
        by_query += (PARTIAL,) if k.head_gradients else ()
        sums = (SUMS,) if self.has_wgmma else ()
        found = []
        if self.outside:
            scores = tuple(s.name for _, s in k.score_gradients)
            clear = Launch(tuple(self.outside), "16 rows x heads x sequences", "128")
            found.append(
                Step("clears what is outside of sequences", (clear,), read, scores, "it is wanted")
            )
        found.append(
            Step(
                "computes the statistics of the queries",
                self._statistics,
                read,
                (STATISTICS, *sums),
            )
        )
        if self.has_wgmma:
            found.append(self._sums(read, by_key))
        mended = by_key if self.has_wgmma else ()
        return [
            *found,
            Step(
                "computes gradients by blocks of queries",
                self._launches(QUERIES, "heads"),
                (*read, STATISTICS, *sums),
                (*by_query, *mended),
                "one of them is wanted",
            ),
            *self._partial_steps,
            Step(
                "computes gradients by blocks of keys",
                self._launches(KEYS, "kv_heads"),
                (*read, STATISTICS),
                by_key,
                "one of them is wanted, and the kernels do not use wgmma"
                if self.has_wgmma
                else "one of them is wanted",
            ),
            *self._sink_steps,
        ]

    def _head_step(self, does, stream, read):
        launch = Launch((self.per_head(stream),), "heads", "512")
        return Step(does, (launch,), read, (stream.name,), "it is wanted")

    @property
    def _partial_steps(self):
        """Steps that sum gradients of the score's operands with one number per head."""
        does = "sums blocks of queries per head"
        return [self._head_step(does, s, (PARTIAL,)) for _, s in self.k.head_gradients]

    @property
    def _sink_steps(self):
        """The step of the sink's gradient."""
        k = self.k
        if not k.sink_gradient:
            return []
        read = (STATISTICS, k.sink.name, *(s.name for s in k.inputs if s.kind == "per_query"))
        return [self._head_step("sums the gradient of the sink", k.sink_gradient, read)]
