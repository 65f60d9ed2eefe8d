# SPDX-License-Identifier: Apache-2.0
"""A process that loads one spec after the other has kf's own entries, and the kernels made of them,
once: what is done to one is not seen in another.
"""

import dataclasses

from kfgen.entries import spec
from kfgen.interfaces import manifest
from kfgen.render.render import Selection

TWICE = '[activation.twice]\nbrief = "2 x"\nexpr = "2 * x"\nref = "2 * x"\n'


def functions(loaded, *chosen):
    return [
        launcher.name for k in Selection(loaded, *chosen).all_kernels() for launcher in k.launchers
    ]


def test_kernels_are_shared():
    first, second = (Selection(spec.load(), ["add"]) for _ in range(2))
    assert first.all_kernels() == second.all_kernels() != []
    few = Selection(spec.load(), ["add"], ["relu"])
    assert not set(few.all_kernels()) & set(first.all_kernels())
    assert {a.name for k in few.all_kernels() for a in k.acts} == {"none", "relu"}
    assert len(functions(spec.load(), ["add"])) > len(functions(spec.load(), ["add"], ["relu"])) > 0


def test_a_changed_entry_is_one_loads_own():
    whole = functions(spec.load(), ["add"])
    changed = spec.load()
    changed.ops["add_{act}"].activations = [changed.activations["none"]]
    changed.ops["mul_{act}"] = dataclasses.replace(changed.ops["mul_{act}"], without=("gelu",))
    assert (
        len(functions(changed, ["add"])) < len(whole) and functions(spec.load(), ["add"]) == whole
    )
    assert changed.own.ops["mul_{act}"].without == () and not changed.as_own(
        changed.ops["mul_{act}"]
    )


def test_a_users_activation_is_one_loads_own(tmp_path):
    """Also in an op that others are made of."""
    path = tmp_path / "mine.toml"
    path.write_text(TWICE)
    before, users, after = spec.load(), spec.load([path]), spec.load()
    assert "kf_add_twice_f32" in functions(users) and "kf_add_twice_f32" not in functions(after)
    assert functions(before) == functions(after) and "twice" not in after.activations
    for op in users.ops.values():
        assert users.as_own(op) == (
            users.activations["twice"] not in op.activations and all(map(users.as_own, op.made_of))
        ), op.pattern
        assert all(users.ops[other.pattern] is other or users.as_own(other) for other in op.made_of)


def test_a_signature_is_the_manifests():
    selection = Selection(spec.load(), ["add", "linear", "cross_entropy"])
    assert manifest.signatures(selection) == [
        f["signature"] for f in manifest.build(selection)["functions"]
    ]


def test_the_first_forwards_are_the_manifests():
    selection = Selection(spec.load(), ["add", "act_dropout"])
    wanted = [(op, act) for op in selection.ops for act in op.activations]
    first = {
        (f["op"], f["activation"]): f
        for f in reversed(manifest.build(selection)["functions"])
        if not f["bwd"] and not f["state"]
    }
    assert manifest.forwards(selection, wanted) == [
        first[op.pattern, act.name] for op, act in wanted
    ]
