# SPDX-License-Identifier: Apache-2.0
"""Workspaces of every function that takes one: refused if missing, too small, misaligned or
overlapping a tensor, whichever gradients are wanted. If <function>_workspace_bytes is 0, the
argument is ignored.
"""

import cases
from refusals import (
    FUNCTIONS,
    MISALIGNED,
    OVERLAP,
    WORKSPACE,
    Call,
    extents,
    item,
    outputs,
    sums,
    tensors_of,
    unread,
)


def with_workspace(functions):
    return [f for f in functions if f["scratch"]]


def in_parts(f):
    """True if results, and not only summed gradients, may be computed in parts."""
    return f["reduces"] or getattr(cases.own(f), "RESULTS_IN_PARTS", False)


def test_who_has_one():
    """Ensures that the tests below have functions to test."""
    assert len(with_workspace(FUNCTIONS)) > len(FUNCTIONS) / 20
    assert all(f["scratch"] for f in FUNCTIONS if sums(f))
    assert [f["name"] for f in with_workspace(FUNCTIONS) if not (sums(f) or in_parts(f))] == []
    assert all(f["workspace"] for f in FUNCTIONS if f["bwd"] or f["scratch"])


def test_no_bytes_may_be_null(lib, functions):
    """<function>_workspace_bytes returns 0 for a function that takes a workspace but uses none; the
    argument is ignored.
    """
    for f in [f for f in functions if f["workspace"] and not f["scratch"]]:
        call = Call(lib, f)
        assert (
            call.workspace_bytes == 0
            and "void *workspace, size_t workspace_bytes" in f["signature"]
        )
        call.set(workspace=None, workspace_bytes=0).accepts("no workspace", outputs(f))
        call = Call(lib, f)
        call.set(
            workspace=call.address(tensors_of(f)[0]["name"]) + 1, workspace_bytes=2**63
        ).accepts("a workspace that nobody uses", outputs(f))


def test_missing_small_misaligned(lib, functions):
    for f in with_workspace(functions):
        call = Call(lib, f)
        need = call.workspace_bytes
        assert need > 0
        words = (f"expected {need} bytes ({call.name}_workspace_bytes), aligned to 256",)
        call.set(workspace=None).refuses(WORKSPACE, "workspace", *words)
        Call(lib, f).set(workspace=None, workspace_bytes=0).refuses(
            WORKSPACE, "workspace", "of 0 bytes", *words
        )
        for got in (need - 1, 1, 0):
            Call(lib, f).set(workspace_bytes=got).refuses(
                WORKSPACE, "workspace", f"of {got} bytes", *words
            )
        for shift in (1, 16, 128):
            call = Call(lib, f)
            call.set(workspace=call.address(":workspace") + shift).refuses(
                MISALIGNED, "workspace", "is 0x", "expected memory aligned to 256 bytes"
            )
        Call(lib, f).set(workspace_bytes=2**63).accepts("more workspace than needed", outputs(f))
        for one in sums(f):
            Call(lib, f).set(workspace=None).set_all(
                [s for s in sums(f) if s != one], None
            ).refuses(WORKSPACE, "workspace", *words)


def test_the_whole_size_whichever_gradients_are_wanted(lib, functions):
    """The required size does not depend on the wanted gradients. Without outputs it is 0."""
    for f in [f for f in with_workspace(functions) if sums(f)]:
        rest = set(outputs(f)) - set(sums(f))
        Call(lib, f).set_all(sums(f), None).accepts("no sum", rest)
        for got in (0, 1) if rest else ():
            Call(lib, f).set_all(sums(f), None).set(workspace_bytes=got).refuses(
                WORKSPACE, "workspace", f"{Call(lib, f).workspace_bytes} bytes"
            )
        Call(lib, f).set_all(outputs(f), None).set(workspace=None, workspace_bytes=0).accepts(
            "no gradient and no workspace"
        )


def test_overlap(lib, functions):
    """Refuses a tensor whose first or last element lies in the workspace; accepts adjacent ones."""
    for f in with_workspace(functions):
        for a in tensors_of(f):
            call = Call(lib, f)
            begin, end, size = (
                call.address(":workspace"),
                call.address(":workspace") + call.workspace_bytes,
                call.bytes[a["name"]],
            )
            unit = item(a)
            inside = {
                begin,
                begin + unit,
                end - unit,
                begin - size + unit,
                (begin + end) // 2 // unit * unit,
            }
            # GAP is larger than any tensor: a moved tensor reaches no other.
            for at in sorted(inside):
                call = Call(lib, f)
                at += call.address(":workspace") - begin  # each call has its own arena
                call.set(**{a["name"]: at})
                if unread(a):
                    call.accepts(f"{a['name']}, which is not read, on the workspace", outputs(f))
                else:
                    expected = f"expected {call.workspace_bytes} bytes apart from every tensor"
                    call.refuses(OVERLAP, "workspace", f"overlaps {a['name']} at 0x", expected)
            for where in (-size // unit * unit, call.workspace_bytes):
                call = Call(lib, f)
                at = call.address(":workspace") + where
                call.bytes[a["name"]], call.at[a["name"]] = size, at - call.base
                if at % unit == 0:
                    call.set(**{a["name"]: at}).accepts(
                        f"{a['name']} beside the workspace", outputs(f)
                    )


def test_only_what_is_used_must_be_apart(lib, functions):
    """A caller's workspace may be larger than a call needs, and overlap tensors beyond the used
    part.
    """
    for f in with_workspace(functions):
        call = Call(lib, f)
        call.set(workspace_bytes=2**40).accepts("a workspace with a very large size", outputs(f))


def test_query(lib, functions):
    """Invalid sizes need 0 bytes; the size grows monotonically with each extent."""
    for f in with_workspace(functions):
        sizes = list(extents(f))
        assert (
            lib.workspace_bytes(f, [-1] + sizes[1:]) == 0
            and lib.workspace_bytes(f, sizes) % 256 == 0
        )
        assert lib.workspace_bytes(f, [2**62] * len(sizes)) == 0
        assert lib.workspace_bytes(f, [4096] + sizes[1:]) >= lib.workspace_bytes(f, sizes)
