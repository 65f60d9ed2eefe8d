# SPDX-License-Identifier: Apache-2.0
"""Which functions' products go by wgmma where the device's code has it."""

import kflib
import selection


def functions():
    """Of each op, forward and backward, with an activation that has scalars, or none."""
    found = [f for f in kflib.on("cuda", kflib.manifest()["functions"]) if f["family"] == "gemm" and f["activation"] in ("none", "gelu", "elu")
             and (f["dtypes"][0] in ("bf16", "f16") or any("_wgmma<" in name for stage in f["stages"] for name in stage))]
    return selection.cover(lambda f: [("op", f["op"], f["state"], f["bwd"], f["dtypes"][0] == "f32"), ("dtype", *f["dtypes"], f["layout"]),
                                      ("activation", f["activation"])], found)


FUNCTIONS = functions()
