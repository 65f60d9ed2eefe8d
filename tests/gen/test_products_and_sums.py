# SPDX-License-Identifier: Apache-2.0
"""Generated CUDA states which product a sum is fused with, where the compiler could choose. It
chose differently in two instances of a kernel, so strided rows had other last bits than contiguous
ones (tests/cuda/test_strided.py)."""

import pytest
from kfgen.language.emit import Target, emit
from kfgen.language.expr import Graph, parse

NAMES = ("a", "b", "c", "d")


def written(text, flavour="f32", masks=False, round_roots=False):
    graph = Graph()
    root = parse(graph, text, {name: graph.var(name) for name in NAMES})
    lines, [body] = emit(
        graph,
        [root],
        Target("kfi_cpu_" if masks else "kfi_", flavour, masks),
        {},
        fixed={},
        round_roots=round_roots,
    )
    return " ".join([*lines, body])


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("a * b + c * d", "kfi_fma_f32(a, b, c * d)"),
        ("a * b - c * d", "kfi_fma_f32(a, b, -(c * d))"),
        ("a * b * c + d * d", "kfi_fma_f32(a * b, c, d * d)"),
        ("a * b + c", "a * b + c"),  # there is one choice
        ("t = a * b; t + t", "const float t0 = kfi_mul_f32(a, b); 2.0f * t0"),
        ("t = a * b; (t + c) * (t - d)", "const float t0 = kfi_mul_f32(a, b); (t0 + c) * (t0 - d)"),
    ],
)
def test_in_cuda(text, body):
    assert written(text) == body
    assert written(text, "lp") == body
    assert written(text, "f64") == body.replace("_f32", "_f64").replace("float", "double").replace(
        "2.0f", "2.0"
    )


def test_what_the_caller_may_add_to():
    assert written("a * b", round_roots=True) == "kfi_mul_f32(a, b)" and written("a * b") == "a * b"
    assert written("a * b + c", round_roots=True) == "a * b + c"


@pytest.mark.parametrize("text", ["a * b + c * d", "t = a * b; t + t"])
def test_in_c_and_of_whole_numbers_as_it_stands(text):
    """C has one loop for all elements, and integers do not round, so neither needs an explicit
    fma."""
    assert "fma" not in written(text, masks=True) and "mul" not in written(text, masks=True)
    assert "fma" not in written(text, "i32")
