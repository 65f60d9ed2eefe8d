# SPDX-License-Identifier: Apache-2.0
"""Backwards that may compute the gradient from the activation's result: they require the result or
the inputs, and read only one of them.
"""

import checks
from refusals import (
    FUNCTIONS,
    INVALID_VALUE,
    NULL_POINTER,
    OVERLAP,
    Call,
    count,
    item,
    outputs,
    tensors_of,
)


def by_result(functions):
    return [f for f in functions if checks.result_of(f)]


def test_there_are_some():
    assert {f["activation"] for f in by_result(FUNCTIONS)} == {
        "relu",
        "leaky_relu",
        "relu6",
        "elu",
        "selu",
        "sigmoid",
        "hardsigmoid",
        "tanh",
    }


def test_one_of_the_two_is_needed(lib, functions):
    for f in by_result(functions):
        result, instead = checks.result_of(f), checks.instead_of(f)
        Call(lib, f).set_all(instead, None).accepts("the result alone", outputs(f))
        Call(lib, f).set(**{result: None}).accepts("the inputs alone", outputs(f))
        for a in tensors_of(f):
            if a["name"] in instead:
                call = Call(lib, f).set(**{result: None, a["name"]: None})
                call.refuses(
                    NULL_POINTER,
                    a["name"],
                    f"{a['name']} is NULL, expected a pointer to "
                    f"{count(f, a, call.sizes)} elements",
                )


def test_a_scalar_that_makes_it_ambiguous(lib, functions):
    for f in by_result(functions):
        for name in f["rising"]:
            for value in (-0.5, -float("inf"), -1e-30):
                words = (f"{name} is {value:g}", "expected 0 or more where `out` is given")
                Call(lib, f).set(**{name: value}).refuses(INVALID_VALUE, name, *words)
                Call(lib, f).set(**{name: value, f["sizes"][0]: 0}).refuses(
                    INVALID_VALUE, name, *words
                )
                Call(lib, f).set(**{name: value, checks.result_of(f): None}).accepts(
                    "a negative scalar without the result", outputs(f)
                )
            for value in (0.0, -0.0, float("nan")):
                Call(lib, f).set(**{name: value}).accepts(f"{name} = {value}", outputs(f))


def test_overlap_of_what_is_read(lib, functions):
    """Outputs may overlap an input only if the result is given: the input is not read then."""
    for f in by_result(functions):
        for a in tensors_of(f):
            for name in (
                outputs(f) if a["name"] in checks.instead_of(f) and a["kind"] == "elem" else ()
            ):
                shifted = Call(lib, f)
                shifted.set(**{a["name"]: shifted.address(name) + item(a)}).accepts(
                    f"{a['name']}, which is not read, on {name}", outputs(f)
                )
                call = Call(lib, f)
                call.set(
                    **{checks.result_of(f): None, a["name"]: call.address(name) + item(a)}
                ).refuses(OVERLAP, name, f"overlaps {a['name']} at")
