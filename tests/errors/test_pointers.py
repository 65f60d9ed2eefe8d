# SPDX-License-Identifier: Apache-2.0
"""Pointers of every function: NULL exactly where the manifest allows it, and element-aligned."""

import cases
from refusals import MISALIGNED, NULL_POINTER, POISON, Call, count, item, outputs, sums, tensors_of


def test_the_valid_call(lib, functions):
    """The other tests change one argument of this valid call."""
    for f in functions:
        call = Call(lib, f)
        call.accepts("a valid call", outputs(f))
        for name in outputs(f) if lib.backend == "cpu" else ():
            assert (call.span(name) != POISON).any(), f"{call.name} did not write {name}"


def test_null(lib, functions):
    for f in functions:
        for a in tensors_of(f):
            together = cases.together(f, a["name"])
            if a["null"]:
                Call(lib, f).set_all(together, None).accepts(
                    f"{a['name']} NULL", set(outputs(f)) - {*together}
                )
                if len(together) > 1:
                    Call(lib, f).set(**{a["name"]: None}).refuses(
                        NULL_POINTER,
                        a["name"],
                        f"{a['name']} is NULL, expected a pointer beside that of ",
                    )
            else:
                call = Call(lib, f).set(**{a["name"]: None})
                call.refuses(
                    NULL_POINTER,
                    a["name"],
                    f"{a['name']} is NULL, expected a pointer to "
                    f"{count(f, a, call.sizes)} elements",
                )
        # All nullable arguments at once; without outputs the workspace too, since nothing is
        # launched then.
        nullable = [
            a["name"] for a in tensors_of(f) if a["null"] not in ("", "inputs")
        ]  # inputs or the result
        call, wanted = (
            Call(lib, f).set_all(nullable, None),
            [n for n in outputs(f) if n not in nullable],
        )
        if not wanted:
            call.set(workspace=None, workspace_bytes=0)
        call.accepts("everything nullable NULL", wanted)
        assert wanted or call._call()[2] == 0, f"{call.name} launches something for nothing"


def test_misaligned_to_the_element(lib, functions):
    for f in functions:
        for a in tensors_of(f):
            # every address is aligned for bytes
            for shift in {1, item(a) // 2} if item(a) > 1 else ():
                call = Call(lib, f)
                call.set(**{a["name"]: call.address(a["name"]) + shift})
                call.refuses(
                    MISALIGNED,
                    a["name"],
                    f"{a['name']} is 0x",
                    f"expected a pointer aligned to its {item(a)}-byte elements",
                )


def test_pointers_come_before_the_workspace(lib, functions):
    for f in functions:
        for a in tensors_of(f) if sums(f) else ():
            if not a["null"]:
                Call(lib, f).set(workspace=None, **{a["name"]: None}).refuses(
                    NULL_POINTER, a["name"]
                )
