# SPDX-License-Identifier: Apache-2.0
"""Which functions' products go by wgmma where the device's code has it."""

import cases
import kflib
import ledger
import selection


def functions(dtypes=("bf16", "f16", "f32", "tf32")):
    """Of each op, forward and backward, with an activation that has scalars, or none. Of floats a few: how factors lie, one product or two, and what
    stands before them."""
    found = [
        f
        for f in kflib.on("cuda", kflib.manifest()["functions"])
        if f["family"] == "matmul"
        and f["activation"] in ("none", "gelu", "elu")
        and f["dtypes"][0] in dtypes
        and (
            f["dtypes"][0] in ("bf16", "f16")
            or any("_wgmma<" in name for stage in f["stages"] for name in stage)
        )
    ]

    def thin(f):  # where nobody has changed them since all of it passed (ledger.py): each kernel
        halves = f["dtypes"][0] in ("bf16", "f16")
        return [
            ("halves" if halves else f["dtypes"][0], f["form"] == "nt", f["bwd"]),
            (halves, f["op"] == "linear_{act}_mul", f["bwd"]),
        ]

    def features(f):
        if f["dtypes"][0] == "tf32":
            return [("tf32", f["form"] == "nt", f["bwd"], f["op"] == "linear_{act}_mul")] * (
                f["form"] in ("nt", "nn")
            )
        if f["dtypes"][0] == "f32":
            return [
                ("f32", f["form"], f["bwd"]),
                ("f32", f["op"].endswith("_linear"), f["op"] == "linear_{act}_mul", f["bwd"]),
            ]
        return [
            ("op", f["op"], f["state"], f["bwd"]),
            ("dtype", *f["dtypes"], f["layout"]),
            ("activation", f["activation"]),
        ]

    return selection.cover(
        thin if cases.LEVEL == 1 and ledger.unchanged("matmul") else features, found
    )


FUNCTIONS = functions()
# Whose rows' bits are compared: one of each kind; at level 2 all.
INVARIANT = cases.by_level(
    selection.cover(lambda f: [(f["bwd"], f["dtypes"][0] == "f32", "_mul" in f["op"])], FUNCTIONS),
    FUNCTIONS,
)


def gradient_of(*dtypes):
    return next(
        f
        for f in FUNCTIONS
        if f["bwd"] and f["dtypes"][0] in dtypes and f["form"] == "nt" and not f["dropout"]
    )


# Gradients of weights whose last tiles several blocks share: one of each way to multiply.
LAST = [gradient_of("bf16", "f16"), gradient_of("f32"), gradient_of("tf32")]
