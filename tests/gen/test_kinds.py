# SPDX-License-Identifier: Apache-2.0
"""Kinds of tensors: one description in the generator, one in core/operand.h, which agree."""

import re
from dataclasses import replace

import kflib
import pytest
from kfgen import families
from kfgen.entries import spec
from kfgen.model import kinds
from kfgen.render.render import Selection

HEADER = (kflib.ROOT / "include/kf/core/operand.h").read_text()


def test_both_sides_have_the_same_codes():
    letters = dict(re.findall(r"KFI_EXTENT_(\w+) = '(.)'", HEADER))
    assert (
        letters == {name: getattr(kinds, name) for name in letters}
        and len(letters) == len(set(letters.values())) == 9
    )
    flags = re.search(r"enum \{ (KFI_OUT = .*) \};", HEADER)[1]
    assert {n: int(v) for n, v in re.findall(r"KFI_(\w+) = (\d+)", flags)} == {
        name: getattr(kinds, name) for name in ("OUT", "NULLABLE", "UNREAD", "VECTORS")
    }
    assert re.search(r"KFI_NO_OVERLAP = '(.)'", HEADER)[1] == kinds.NONE


def test_a_code_has_the_characters_in_the_headers_order():
    order = re.findall(r"^    KFI_CODE_(\w+),?$", HEADER, re.M)
    assert order == ["SIZE", "EXTENT", "OVERLAP", "FLAGS", "ALIAS", "LENGTH"]
    kind = kinds.Kind("k", kinds.ROWS, "q", vectors=True)
    code = kinds.code(4, kind, kinds.OUT | kinds.NULLABLE, 2)
    assert dict(zip(order, code)) == {
        "SIZE": "4", "EXTENT": "r", "OVERLAP": "q", "FLAGS": chr(ord("0") + 11), "ALIAS": "2",
    }  # fmt: skip
    assert kinds.code(2, replace(kind, vectors=False), 0, 0)[3] == "0"


def test_every_tensor_has_a_kind_of_its_family():
    """Kinds of operands are those that entries use; a shape belongs to each kind."""
    used = {}
    for k in Selection(spec.load()).all_kernels():
        for s in k.streams:
            used.setdefault(k.family.name, set()).add(s.kind)
            assert k.family.kind(s.kind).name == s.kind and k.shape(s), (k.name, s.name)
        assert {o.kind for o in k.op.operands} <= set(k.family.operand_kinds), k.name
    for name, family in families.FAMILIES.items():
        if family in families.OWN.values():  # another test has loaded it
            continue
        names = [kind.name for kind in family.kinds]
        assert len(names) == len(set(names)) and used[name] <= set(names), name


@pytest.mark.parametrize("name", families.FAMILIES)
def test_overlap_needs_the_same_extent(name):
    """Tensors that may be in place have as many elements as each other."""
    classes = {}
    for kind in families.FAMILIES[name].kinds:
        classes.setdefault(kind.overlap, set()).add(kind.extent)
    classes.pop(kinds.NONE, None)
    assert all(len(extents) == 1 for extents in classes.values())
