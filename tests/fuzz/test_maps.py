# SPDX-License-Identifier: Apache-2.0
"""Random elementwise ops: any number of operands of every kind and dtype, with or without
gradients, several results, activations, dropout.

`kfgen check` must accept them. The C functions must give correct values and gradients under
AddressSanitizer and UndefinedBehaviorSanitizer, and the CUDA functions in the emulation.
"""

import itertools
import os
import subprocess
import sys

import cases
import emulator
import kflib
import pytest
import sanitized_ops
import toolkit
import user_ops
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from kfgen import check

from examples import examples

# {expression: the same for `ref`}, of one argument, with bounded results.
AROUND = {
    "{}": "{}",
    "tanh({})": "np.tanh({})",
    "-{}": "-{}",
    "abs({})": "np.abs({})",
    "sigmoid({})": "expit({})",
    "sin({})": "np.sin({})",
    "({0} * {0} + 0.25)": "({0} * {0} + 0.25)",
    "rsqrt({0} * {0} + 1)": "1 / np.sqrt({0} * {0} + 1)",
    "where({0} > 0.5, {0}, 2)": "np.where({0} > 0.5, {0}, 2)",
}
BETWEEN = ("({} + {})", "({} - {})", "({} * {})", "max({}, {})", "min({}, {})")
IN_NUMPY = {"max({}, {})": "np.maximum({}, {})", "min({}, {})": "np.minimum({}, {})"}
FLAGS = (
    "-Og",
    "-g1",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unknown-pragmas",
)
DTYPES, ACTIVATIONS, OPS = ("f32", "bf16"), ("none", "silu"), 2


@st.composite
def operands(draw):
    """Draws {name: (kind, dtype, has a gradient, names of its values)}; at least one has a
    gradient."""
    broadcast = draw(st.sampled_from(["row", "channel", "half", "half and row", ""]))
    found = {
        f"x{i}": ("elem", "T", draw(st.booleans()), (f"x{i}",))
        for i in range(draw(st.integers(1, 5)))
    }
    for i in range(draw(st.integers(1, 2)) if "half" in broadcast else 0):
        found[f"h{i}"] = ("half", "T", draw(st.booleans()), (f"u{i}", f"w{i}"))
    for i in range(draw(st.integers(1, 7)) if broadcast not in ("half", "") else 0):
        grad = draw(st.booleans()) and "half" not in broadcast
        found[f"b{i}"] = (
            "channel" if broadcast == "channel" else "row",
            draw(st.sampled_from(["T", "acc"])),
            grad,
            (f"b{i}",),
        )
    if not any(grad for _, _, grad, _ in found.values()):
        found["x0"] = ("elem", "T", True, ("x0",))
    return found


@st.composite
def of_all(draw, leaves):
    """Draws (expression, reference) that contain each leaf at least once."""
    parts = [(leaf, leaf) for leaf in draw(st.permutations(leaves))]
    while len(parts) > 1:
        form = draw(st.sampled_from(BETWEEN))
        at = draw(st.integers(0, len(parts) - 2))
        (a, a_ref), (b, b_ref) = parts[at : at + 2]
        around = draw(st.sampled_from(sorted(AROUND)))
        # Summands and factors stay near 1, so that a product of twenty does not overflow.
        a, a_ref = around.format(a), AROUND[around].format(a_ref)
        parts[at : at + 2] = [(form.format(a, b), IN_NUMPY.get(form, form).format(a_ref, b_ref))]
    return parts[0]


@st.composite
def op(draw, name):
    given_ = draw(operands())
    values = [v for *_, own in given_.values() for v in own]
    scalars = draw(st.lists(st.sampled_from(["gain", "knee"]), unique=True))
    act, dropped = draw(st.booleans()), draw(st.booleans())
    outputs = {"out": draw(of_all(values + scalars))}
    for extra in ("second", "third")[: draw(st.integers(0, 2))]:
        outputs[extra] = draw(
            of_all(draw(st.lists(st.sampled_from(values), min_size=1, max_size=4)))
        )
    for word in (["act"] if act else []) + (["dropout"] if dropped else []):
        outputs["out"] = tuple(f"{word}({text})" for text in outputs["out"])
    tables = [[f'{n} = "{texts[k]}"' for n, texts in outputs.items()] for k in range(2)]
    written = ", ".join(
        f'{n} = {{ kind = "{kind}", dtype = "{dtype}", grad = {str(grad).lower()}'
        f"{f', parts = {list(own)}' if kind == 'half' else ''} }}"
        for n, (kind, dtype, grad, own) in given_.items()
    )
    return "\n".join(
        (
            f'[op."{name}{"_{act}" if act else ""}"]',
            'brief = "random"',
            f"operands = {{ {written} }}",
            f"scalars = {{ {', '.join(f'{s} = 0.75' for s in scalars)} }}",
            *(
                f"{field} = {{ {', '.join(table)} }}"
                for field, table in zip(("outputs", "refs"), tables)
            ),
            "",
        )
    )


counter = itertools.count()


def right(text, include, folder):
    """Fails unless all ops of a spec are correct."""
    path, wanted, _ = user_ops.load(text, folder, f"maps{next(counter)}", ACTIVATIONS)
    failures, _ = check.run(wanted)
    assert not failures, f"{failures}\n{text}"
    functions = sanitized_ops.own(path, DTYPES, ACTIVATIONS)
    assert {f["op"] for f in functions} == {o.pattern for o in wanted.ops} and {
        f["bwd"] for f in functions
    } == {False, True}
    library = kflib.library("cpu", functions, folder / "lib", FLAGS, include=[*include, folder])
    command = [
        sys.executable,
        sanitized_ops.__file__,
        library,
        path,
        ",".join(DTYPES),
        ",".join(ACTIVATIONS),
    ]
    done = subprocess.run(
        [*map(str, command)],
        capture_output=True,
        text=True,
        env=os.environ | emulator.sanitizer_environment("asan"),
    )
    assert done.returncode == 0 and done.stdout == f"{len(functions)} functions\n", (
        f"{done.stdout}{done.stderr[:4000]}\n{text}"
    )
    if toolkit.include():
        functions = (
            [f for f in functions if f["dtypes"] == ["bf16"]] if cases.LEVEL == 1 else functions
        )
        lib = emulator.build(functions, folder / "emu", include=[*include, folder])
        sanitized_ops.run(
            lib, emulator.Memory(emulator.Emulator(lib), size=1 << 22), functions, path
        )


# A failure names its op; shrinking would compile for minutes.
@settings(examples(2), phases=(Phase.generate,))
@given(text=st.tuples(*(op(f"fuzz{k}") for k in range(OPS))).map("\n".join))
def test_random_ops(text, include, tmp_path_factory):
    right(text, include, tmp_path_factory.mktemp("maps"))


# Expressions that earlier runs found and that failed once: (operands, expression).
FOUND = {
    "a condition that is the same for a row was kept as a number": (
        'x = "elem", r = { kind = "row", grad = false }, b = "row", '
        'c = { kind = "row", dtype = "acc" }',
        "x + max(where(c > 0.5, c, 2), rsqrt(r * r + 1) * b)",
    )
}


@pytest.mark.parametrize("what", FOUND)
def test_found(what, include, tmp_path):
    given_, expr = FOUND[what]
    ref = (
        expr.replace("where(", "np.where(")
        .replace("max(", "np.maximum(")
        .replace("rsqrt(", "1 / np.sqrt(")
    )
    right(
        f'[op.fuzz]\nbrief = "found"\noperands = {{ {given_} }}\nexpr = "{expr}"\nref = "{ref}"\n',
        include,
        tmp_path,
    )
