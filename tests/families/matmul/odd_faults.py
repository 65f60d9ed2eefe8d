# SPDX-License-Identifier: Apache-2.0
"""Faults that test_emu_odd.py plants in the headers: (file, pattern, replacement)."""

from wgmma_faults import PIPELINE

CLASS, CLASS_SLAB, REPACK = (
    f"kf/core/matmul/{name}.cuh" for name in ("row_class", "row_class_slab", "repack")
)
SEEDED_ODD = {
    "the end of the row before is not zeroed": (PIPELINE, r"i == 0 && cleared > 0", "false"),
    "another chunk of a row is zeroed": (PIPELINE, r"\(\(row & 7\) << 4\) \+\n", "\n"),
    "zeros are not visible to wgmma": (
        PIPELINE,
        r"    kfi_async_fence\(\);\n    kfi_named_sync<128>\(2 \+ r\.group\);",
        "    kfi_named_sync<128>(2 + r.group);",
    ),
    "a product does not wait for other threads' zeros": (
        PIPELINE,
        r"(kfi_async_fence\(\);\n)    kfi_named_sync<128>\(2 \+ r\.group\);",
        r"\1",
    ),
    "K does not begin early": (CLASS, r"depth - shift", "depth"),
    "columns do not begin early": (CLASS, r"at\.col - shift", "at.col"),
    "rows are those of another class": (CLASS, r"row >> 7 & 7", "row >> 7 & 3"),
    "a bias does not begin early": (CLASS_SLAB, r"at\.col - maps\.shift\[.*\];", "at.col;"),
    "the first slab of a row is stored whole": (CLASS_SLAB, r"s\.col == 0 && s\.shift", "false"),
    "the last slab of a row is stored whole": (CLASS_SLAB, r"end % 8", "end % 8 == 8"),
    "a slab without TMA commits no group": (
        CLASS_SLAB,
        r"if \(lane == 0\) kfi_bulk_commit\(\); // an empty",
        "// an empty",
    ),
    "a copy leaves out the last elements": (
        REPACK,
        r"left < 8 \? \(int\)left : 8, span\);\n *kfi_store",
        "left < 8 ? 0 : 8, span);\n        kfi_store",
    ),
    "all matrices of a copy are the first": (REPACK, r"matrix \* job\.matrix", "0 * job.matrix"),
}
