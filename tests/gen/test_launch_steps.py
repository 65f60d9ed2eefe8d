# SPDX-License-Identifier: Apache-2.0
"""The launch steps of the manifest, and the tables and workspaces that follow from them."""

import kflib
import launch_steps
from kfgen.entries import spec
from kfgen.model import runtime_activation, steps
from kfgen.render.render import Selection

FUNCTIONS = {f["name"]: f for f in kflib.manifest()["functions"]}


def test_kernels():
    """`steps` lists the launches of a call and the kernels that each chooses from; the sums of each
    dtype have a step of their own."""
    one, two = (FUNCTIONS[f"kf_bias_gelu_{word}bf16"]["steps"] for word in ("", "bwd_"))
    assert len(one) == 1 and "kfk_bias_bf16<7, 8, 2, KFI_ROWS>" in one[0]["launches"][0]["kernels"]
    assert len(two) == 2 and two[1]["launches"][0]["kernels"] == [
        "kfk_sum_partials<KF_F32, KF_BF16>"
    ]
    for f in FUNCTIONS.values():
        for step in f["steps"]:
            names = [name for launch in step["launches"] for name in launch["kernels"]]
            assert step["launches"] and names and len(set(names)) == len(names), f["name"]
            assert all(launch["kernels"] for launch in step["launches"]), f["name"]


def test_reads_and_writes():
    """Each tensor that a function reads or writes is one of a step. Buffers of the workspace are
    written by a step before another one reads them, or in a loop with it."""
    for f in FUNCTIONS.values():
        of = {word: {n for s in f["steps"] for n in s[word]} for word in ("reads", "writes")}
        given = [a for a in f["arguments"] if "kind" in a]
        outputs = {a["name"] for a in given if a["role"] != "in"}
        inputs = {a["name"] for a in given if a["role"] == "in"}
        read = {a["name"] for a in given if a["role"] == "in" and not a["unread"]}
        buffers = launch_steps.buffers(f, "writes")
        assert of["writes"] - buffers == outputs, f["name"]
        assert read <= of["reads"] and of["reads"] - buffers <= inputs | outputs, f["name"]
        assert buffers == launch_steps.buffers(f, "reads"), f["name"]
        assert f["workspace"] or not buffers, f["name"]
        assert {a["name"] for a in given if a["accumulated"]} <= of["reads"], f["name"]
        written = set()
        for step in f["steps"]:
            needed = {n for n in step["reads"] if n in buffers}
            assert needed <= written or step["per"], (f["name"], step["does"])
            written |= set(step["writes"])


def test_tables_and_workspaces():
    """A run function's tables have the kernels of the steps; a kernel whose schedules use the
    workspace has a buffer in it."""
    for k in Selection(spec.load()).all_kernels():
        for one in [k, runtime_activation.kernel(k)] if runtime_activation.has(k) else [k]:
            found = steps.table(one.cuda.steps, steps.KERNELS)
            assert {*one.cuda.instances} - {steps.NONE} == {*found} - {steps.NONE}, one.name
            assert bool(one.cuda.buffers) == bool(k.scratch or k.shared_out), one.name
            for act in k.acts:
                assert {i for s in one.cuda.steps_of(act) for i in s.kernels} <= {*found} | {
                    *one.cuda.sum_kernels
                }, one.name
