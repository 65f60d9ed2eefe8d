# SPDX-License-Identifier: Apache-2.0
"""Random ops over rows: `kfgen check` must accept them, and the C functions must give correct
values and gradients. At level 2 the CUDA functions too, in the emulation."""

import itertools

import cases
import checks
import emulator
import kflib
import pytest
import toolkit
import user_ops
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from kfgen import check

from examples import examples

# {expression: the same for `ref`}, with arguments mapped into the range where it is defined and
# does not overflow.
FORMS = {
    form: form
    for form in ("({} + {})", "({} - {})", "({} * {})", "-{}", "max({}, {})", "min({}, {})")
} | {
    "{} / (1 + abs({}))": "{} / (1 + np.abs({}))",
    "exp(2 * sin({}))": "np.exp(2 * np.sin({}))",
    "tanh({})": "np.tanh({})",
    "log(abs({}) + 0.25)": "np.log(np.abs({}) + 0.25)",
    "sigmoid({})": "expit({})",
    "rsqrt(abs({}) + 0.25)": "1 / np.sqrt(np.abs({}) + 0.25)",
    "where({} > {}, {}, {})": "np.where({} > {}, {}, {})",
}
REDUCED = ("sum({})", "mean({})", "max({})", "min({})")
# Costly values that several later passes over the row read, together with values derived from them.
CHAINS = {
    "exp({0} - max({0})) / sum(exp({0} - max({0})))": (
        "np.exp({0} - max({0})) / sum(np.exp({0} - max({0})))"
    ),
    "tanh({0}) - max(tanh({0}))": "np.tanh({0}) - max(np.tanh({0}))",
    "3 * tanh({0} - mean({0}))": "3 * np.tanh({0} - mean({0}))",
    "sigmoid({0}) * rsqrt(mean(sigmoid({0})))": "expit({0}) / np.sqrt(mean(expit({0})))",
}
ELEMENTS, ROWS = ("x", "y", "w"), ("r", "gain", "2", "0.5", "-1")
SIZES = [(3, 5), (4, 64), (5, 131), (3, 40), (40, 8)]


@st.composite
def value(draw, depth, of_row):
    """Draws (expression, reference) of a value that varies within a row, or of one that does
    not."""
    if depth == 0 and not of_row:
        return (draw(st.sampled_from(ELEMENTS)),) * 2
    if of_row and draw(st.booleans()) and depth:
        form = draw(st.sampled_from(REDUCED))
        return tuple(form.format(v) for v in draw(value(depth - 1, False)))
    if depth == 0 or draw(st.integers(0, 4)) == 0:
        return (draw(st.sampled_from(ROWS if of_row else ELEMENTS)),) * 2
    form = draw(st.sampled_from(sorted(FORMS)))
    count = form.count("{}")
    # At least one argument has the requested kind.
    own = count - 1 if form.startswith("where") else draw(st.integers(0, count - 1))
    parts = [
        draw(value(depth - 1, of_row or (i != own and draw(st.booleans())))) for i in range(count)
    ]
    return tuple(text.format(*(p[k] for p in parts)) for k, text in enumerate((form, FORMS[form])))


@st.composite
def chain(draw):
    """Draws a value of two or three steps, each of which reduces the elements of the previous
    one."""
    texts = draw(value(1, False))
    for form in draw(st.lists(st.sampled_from(sorted(CHAINS)), min_size=2, max_size=3)):
        texts = tuple(f"({text})".format(v) for text, v in zip((form, CHAINS[form]), texts))
    return texts


@st.composite
def op(draw, name, chained):
    """Draws an entry, with a chain or without. Every operand has a gradient, because the random
    part is added to a product of all."""
    own, ref = draw(chain() if chained else value(3, False))
    act, weights, saved, reduced, stored, dropped = (draw(st.booleans()) for _ in range(6))
    # A saved extreme of rounded values may equal none of them again.
    form = draw(st.sampled_from(REDUCED[:2] if saved else REDUCED))
    whole, whole_ref = (form.format(v) for v in draw(value(2, False)))
    first, first_ref = own, ref
    own, ref = ("mid", "mid") if stored else (own, ref)
    expr, ref = (f"{own} + x * y * w * (r + {{s}})", f"{ref} + x * y * w * (r + {whole_ref})")
    expr = expr.format(s="s" if saved else whole)
    if act:
        expr, ref = f"act({expr})", f"act({ref})"
    if dropped:
        expr, ref = f"dropout({expr})", f"dropout({ref})"
    if reduced:
        expr, ref = f"mean({expr})", f"mean({ref})"
    weight = '{ kind = "row", absent = 1%s }' % (', dtype = "U"' if weights else "")
    return "\n".join(
        (
            f'[op."{name}{"_{act}" if act else ""}"]',
            'family = "rows"',
            'brief = "random"',
            'types = "weights"' if weights else "",
            f'operands = {{ x = "elem", y = "elem", w = {weight}, r = "per_row" }}',
            "scalars = { gain = 0.75 }",
            f'saved = {{ s = "{whole}" }}' if saved else "",
            *(
                (
                    f'outputs = {{ out = "{expr}", mid = "{first}" }}',
                    f'refs = {{ out = "{ref}", mid = "{first_ref}" }}\n',
                )
                if stored
                else (f'expr = "{expr}"', f'ref = "{ref}"\n')
            ),
        )
    )


OPS = 4
counter = itertools.count()


@pytest.fixture(scope="module")
def memory():
    return checks.CpuMemory(1 << 22)


def right(text, include, memory, folder, backends=("cpu",)):
    """Fails unless all ops of a spec are correct."""
    path, wanted, functions = user_ops.load(text, folder, f"rows{next(counter)}")
    failures, _ = check.run(wanted)
    assert not failures, f"{failures}\n{text}"
    functions = [f for f in functions if f["dtypes"][0] in ("f32", "bf16")]
    assert {f["op"] for f in functions} == {o.pattern for o in wanted.ops}
    for backend in backends:
        if backend == "cpu":
            lib = kflib.build(
                "cpu",
                functions,
                folder / "lib",
                ("-O0", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"),
                include=[*include, folder],
            )
        else:
            functions = [f for f in functions if f["dtypes"][0] == "f32"]
            lib = emulator.build(functions, folder / "emu", include=[*include, folder])
            memory = emulator.Memory(emulator.Emulator(lib), size=memory.size)
        for f in functions:
            for k, sizes in enumerate(SIZES):
                checks.run(
                    lib,
                    memory,
                    f,
                    sizes,
                    shift=k % 2,
                    drop=("w",) if k == 3 and "absent" in text else (),
                    files=(path,),
                )


BACKENDS = ("cpu", "emu") if toolkit.include() else ("cpu",)


# A failure names its op; shrinking would compile for minutes.
@settings(examples(2), phases=(Phase.generate,))
@given(text=st.tuples(*(op(f"fuzz{k}", k == 0) for k in range(OPS))).map("\n".join))
def test_random_ops(text, include, memory, tmp_path_factory):
    right(
        text, include, memory, tmp_path_factory.mktemp("rows"), cases.by_level(("cpu",), BACKENDS)
    )


# Expressions that earlier runs found and that failed once.
FOUND = (
    # A row's value got the adjoint of one element instead of all.
    "x * y * w + sum(x - r)",
    "mean(x * y * w * r - min(r, max(w)))",
    # Without an activation the term is uniform over a row, and the reference counted it once.
    "mean(act(x * y * w - r))",
    # A sum of two products, one of which had a name, was built from that one's factors.
    "x * y * w * (r + mean(sum(y) - w))",
    # A condition that is uniform over a row was stored as a number.
    "where(r > sum(x), r, x) * y * w",
)
# Dropout anywhere: on reduced values, on values uniform over a row, on two values, and reread by
# the gradient.
DROPPED = (
    "x * y * w * r / (1 + sum(abs(dropout(x * y))))",
    "dropout(r * sum(x * y)) * w + max(dropout(x))",
    "act(dropout(x * y) + dropout(w * r)) - mean(x)",
    "dropout(act(dropout(x * y * w) * r) - mean(x))",
)


@pytest.mark.parametrize("expr", FOUND + DROPPED)
def test_found(expr, include, memory, tmp_path):
    right(
        f"""
[op."found{"_{act}" if "act(" in expr else ""}"]
family = "rows"
brief = "found"
operands = {{ x = "elem", y = "elem", w = {{ kind = "row", absent = 1 }}, r = "per_row" }}
expr = "{expr}"
ref = "{expr.replace("where(", "np.where(").replace("abs(", "np.abs(")}"
""",
        include,
        memory,
        tmp_path,
    )


# A later pass reads a value, and another value derived from it. Both had one name once, and neither
# C nor CUDA compiled.
CHAINED = {
    "softcap_softmax": (
        "z = 3 * tanh(x / 3); e = exp(z - max(z)); e / sum(e)",
        "(z := 3 * np.tanh(x / 3), e := np.exp(z - max(z)), e / sum(e))[2]",
    ),
    "softmax_of_softmax": (
        "a = exp(x - max(x)); b = a / sum(a) * y; c = exp(b - max(b)); c / sum(c)",
        "(a := np.exp(x - max(x)), b := a / sum(a) * y, c := np.exp(b - max(b)), c / sum(c))[3]",
    ),
}


def test_chained(include, memory, tmp_path):
    right(
        "".join(
            f"""
[op.{name}]
family = "rows"
brief = "{name}"
operands = {{ x = "elem"{', y = "elem"' if "y" in expr else ""} }}
expr = "{expr}"
ref = "{ref}"
"""
            for name, (expr, ref) in CHAINED.items()
        ),
        include,
        memory,
        tmp_path,
        BACKENDS,
    )
