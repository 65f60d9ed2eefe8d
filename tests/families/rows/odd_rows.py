# SPDX-License-Identifier: Apache-2.0
"""Rows of 2-byte elements of any length and alignment: results are right, and their bits depend on
neither alignment nor strides.
"""

import checks
import faults
import storage
import strided

# One tensor in registers, two, with weights (of float32 too), gradients of weights, a gathered
# column, an operand that heads share.
NAMES = (
    "kf_softmax_bf16",
    "kf_softmax_bwd_f16",
    "kf_layer_norm_bf16",
    "kf_layer_norm_bwd_bf16",
    "kf_add_rms_norm_bf16",
    "kf_rms_norm_bf16_f32",
    "kf_cross_entropy_with_grad_bf16",
    "kf_scale_mask_softmax_bf16",
)
FUNCTIONS = faults.named(NAMES, "cuda")


def sizes_of(f, rows, cols):
    return (1, 2, rows, cols) if f["form"] == "heads" else (rows, cols)


def alignments(f):
    """Alignments per tensor, different for each; over all calls each of the eight. The first call
    is aligned.
    """
    count = sum("kind" in a for a in f["arguments"])
    return [0] + [tuple((turn + 3 * i * turn + i) % 8 for i in range(count)) for turn in range(8)]


def check(lib, memory, f, rows, cols):
    """Checks the result, and that bits are the same at every alignment, in place, with strides, and
    without optional operands.
    """
    sizes, first = sizes_of(f, rows, cols), None
    for shift in alignments(f):
        got = checks.run(lib, memory, f, sizes, ("normal", "special")[cols % 2], shift=shift)
        first = first or got
        for name, array in got.items():
            if not checks.same_bits(array, first[name]):
                raise checks.Failure(
                    f"{f['name']} sizes={sizes} seed=0: {name} has other bits at "
                    f"alignment {shift}, "
                    f"{storage.first_difference(array, first[name])}"
                )
    for pair in checks.in_place_pairs(f):
        got = checks.run(
            lib, memory, f, sizes, ("normal", "special")[cols % 2], shift=cols % 8, inplace=(pair,)
        )
        for name, array in got.items():
            if not checks.same_bits(array, first[name]):
                raise checks.Failure(
                    f"{f['name']} sizes={sizes} seed=0: {name} has other bits with {pair[0]} in "
                    f"place of {pair[1]}, {storage.first_difference(array, first[name])}"
                )
    strided.same(lib, memory, f, sizes)
    if absent := tuple(a["name"] for a in f["arguments"] if a.get("null") == "absent"):
        whole, odd = (
            checks.run(lib, memory, f, sizes, drop=absent, shift=shift) for shift in (0, 1)
        )
        if any(not checks.same_bits(array, odd[name]) for name, array in whole.items()):
            raise checks.Failure(
                f"{f['name']} {sizes}: other bits without {', '.join(absent)} "
                "where rows are not aligned"
            )
