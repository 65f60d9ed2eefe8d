# SPDX-License-Identifier: Apache-2.0
"""Which functions' products go by wgmma where the device's code has it."""

import kflib
import selection


def functions():
    """Of each op, forward and backward, with an activation that has scalars, or none."""
    found = [f for f in kflib.on("cuda", kflib.manifest()["functions"]) if f["family"] == "gemm" and f["dtypes"][0] in ("bf16", "f16")
             and f["activation"] in ("none", "gelu", "elu")]
    return selection.cover(lambda f: [("op", f["op"], f["state"], f["bwd"]), ("dtype", *f["dtypes"], f["layout"]), ("activation", f["activation"])],
                           found)


FUNCTIONS = functions()
