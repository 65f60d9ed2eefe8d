# SPDX-License-Identifier: Apache-2.0
"""Proves that the number tests notice errors: each test breaks one thing and must fail.

Activations: each literal of `expr` and `dexpr` is altered, the reference kept. All mutants are
activations of one spec, rendered and compiled once. Ops and schedules: one line of the generated C
or of core is altered in a copy.
"""

import dataclasses
import functools
import pathlib
import re
import sys

import cases
import checks
import exhaustive
import faults
import kflib
import numeric
import pytest
import selection
from conftest import BUILD
from kfgen.entries import spec as specs
from kfgen.render.render import Selection

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import broken_schedules  # noqa: E402

DTYPES = ("f32", "bf16")
FLAGS = ("-Og", "-ffp-contract=off")
STREAMED = ("-mavx", "-DKF_STREAM_MIN=0")
# The factor is visible in bf16, whose neighbours are up to 0.8 % apart. The shift is for a zero.
FACTOR, SHIFT = 1.02, 0.03
LITERAL = re.compile(r"(?<![\w.])\d+(?:\.\d*)?(?:[eE][-+]?\d+)?(?![\w.])")

# Mutants that compute the same function: (activation, field, literal).
EQUIVALENT = {
    ("mish", "expr", "20"): "from the clamp on, the quotient is 1 to the last bit",
    (
        "mish",
        "dexpr",
        "20",
    ): "from the clamp on, the quotient is 1 and the second term 0, to the last bit",
    ("softsign", "expr", "1e30"): "from the clamp on, the quotient is 1 to the last bit",
    ("gelu_tanh", "dexpr", "30"): "at the clamp the sigmoid is 0 or 1 to the last bit already",
}


@dataclasses.dataclass
class Mutant:
    original: str  # the activation's name
    field: str
    literal: str
    act: object

    @property
    def bwd(self):
        """True if the backward must fail, else the forward. (A derived gradient need not notice:
        that of a constant stays 0.)"""
        return self.field == "dexpr"


def mutants_of(act):
    for field in ("expr", "dexpr"):
        text = getattr(act, field)
        if text is None:
            continue
        places = [
            (m, repr(float(m[0]) * FACTOR if float(m[0]) else SHIFT))
            for m in LITERAL.finditer(text)
        ]
        if not places:  # alters an operand if there are no constants
            places = [(m, f"({FACTOR} * x)") for m in list(re.finditer(r"\bx\b", text))[:1]]
        for m, new in places:
            if (act.name, field, m[0]) not in EQUIVALENT:
                yield Mutant(
                    act.name,
                    field,
                    m[0],
                    dataclasses.replace(act, **{field: text[: m.start()] + new + text[m.end() :]}),
                )


@functools.cache
def mutants():
    """Returns {name: Mutant}. Each mutant is an ordinary activation with a name and an id of its
    own."""
    found = {}
    for act in checks.spec().activations.values():
        if act.name != "none":
            for i, m in enumerate(mutants_of(act)):
                m.act = dataclasses.replace(
                    m.act, name=f"{act.name}_{m.field}{i}", id=2000 + len(found)
                )
                found[m.act.name] = m
    return found


def mutated_selection():
    spec = specs.load()
    spec.activations = {"none": spec.activations["none"]} | {
        name: m.act for name, m in mutants().items()
    }
    spec.ops["{act}"].activations = [m.act for m in mutants().values()]
    return Selection(spec, ops=["{act}"], dtypes=list(DTYPES))


@pytest.fixture(scope="module")
def memory():
    return checks.CpuMemory()


@pytest.fixture(scope="module")
def mutated(once):
    """Returns (library, {(mutant, dtype, bwd): function})."""

    def made(out):
        functions = kflib.write(mutated_selection(), out)
        return kflib.library(
            "cpu", functions, out / "lib", FLAGS, include=[kflib.ROOT / "include", out]
        ), functions

    path, functions = once("mutants", made)
    return kflib.Lib("cpu", path), {
        (f["activation"], f["dtypes"][0], f["bwd"]): f for f in functions
    }


def goes_red(lib, memory, f):
    """True if test_numbers or test_all_values would fail on f."""
    try:
        for sizes, values, shift in cases.runs(f):
            checks.run(lib, memory, f, sizes, values, shift=shift)
        exhaustive.run_all_values(lib, f)
    except checks.Failure:
        return True
    return False


def test_every_activation_has_mutants():
    names = {a.name for a in checks.spec().activations.values()} - {"none"}
    assert {m.original for m in mutants().values() if m.field == "expr"} == names
    used = {
        (a.name, field, literal[0])
        for a in checks.spec().activations.values()
        for field in ("expr", "dexpr")
        for literal in LITERAL.finditer(getattr(a, field) or "")
    }
    assert set(EQUIVALENT) <= used, "an exception for what is not in the spec any more"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", mutants())
def test_altered_activation(mutated, memory, name, dtype):
    lib, functions = mutated
    m = mutants()[name]
    # Calls the mutant and compares with the original's reference.
    f = functions[name, dtype, m.bwd] | {"activation": m.original}
    assert goes_red(lib, memory, f), (
        f"{m.original}: {m.field} = {getattr(m.act, m.field)!r} ({m.literal} altered) passes "
        "as right"
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name",
    [a.name for a in checks.spec().activations.values() if a.dexpr is None and a.name != "none"],
)
def test_altered_expression_of_a_derived_gradient(mutated, memory, name, dtype):
    """At least one mutant of an expression without a dexpr is noticed in its gradient."""
    lib, functions = mutated
    noticed = [
        goes_red(lib, memory, functions[n, dtype, True] | {"activation": name})
        for n, m in mutants().items()
        if m.original == name
    ]
    assert any(noticed)


@pytest.mark.parametrize("name", ["relu", "gelu", "hardtanh"])
def test_the_original_is_green(memory, name):
    """The unchanged functions pass."""
    chosen = [
        f
        for f in kflib.manifest()["functions"]
        if f["op"] == "{act}" and f["activation"] == name and f["dtypes"][0] in DTYPES
    ]
    lib = kflib.build("cpu", chosen, BUILD / "cpu", FLAGS)
    assert len(chosen) == 4 and not any(goes_red(lib, memory, f) for f in chosen)


# ---- ops and schedules

BROKEN = broken_schedules.BROKEN | cases.merged("BROKEN")
# Sums are split from 131,072 elements on; without sums, rows form blocks from 16,384 elements on.
BIG = {"a sum's first part twice": [((600, 403), "normal", 0)]} | dict.fromkeys(
    (
        "row: all blocks store to the first one's partial sums",
        "row: the last block is left out",
        "row: blocks have too few rows",
    ),
    [((601, 403), "normal", 0)],
)


def test_every_fault_has_its_place(include, tmp_path):
    """Every fault can still be planted, including those that level 1 does not compile."""
    for file, text, instead, _ in BROKEN.values():
        faults.plant(include, tmp_path, file, text, instead)


@pytest.mark.parametrize("what", faults.some(BROKEN))
def test_altered_schedule(include, memory, tmp_path, what):
    file, text, instead, names = BROKEN[what]
    functions = [f for f in kflib.manifest()["functions"] if f["cpu_name"] in names]
    assert len(functions) == len(names)
    streamed = what.startswith("streamed")
    if streamed and "avx" not in open("/proc/cpuinfo").read().split():
        pytest.skip("this machine has no vectors that are streamed")
    broken = faults.plant(include, tmp_path, file, text, instead)
    lib = kflib.build(
        "cpu", functions, tmp_path / "lib", FLAGS + (STREAMED if streamed else ()), include=broken
    )
    for f in functions:
        with pytest.raises(checks.Failure):
            numeric.numbers(lib, memory, f)
            for sizes, values, shift in BIG.get(what, []):
                checks.run(lib, memory, f, sizes, values, shift=shift)


PARTS = cases.by_level(1, 6)  # parts that run in parallel: the whole takes several minutes


@pytest.mark.parametrize("part", range(PARTS))
def test_several_parts(memory, part):
    """Some faults above show only on large tensors, so unchanged functions must pass on these."""

    def takes(f):
        return (
            (f["scratch"] or f["family"] == "rows")
            and f["dtypes"][0] in DTYPES
            and len(f["sizes"]) > 1
            and f["family"] != "reduction"
        )

    if cases.LEVEL > 1:
        functions = [
            f
            for f in kflib.manifest()["functions"]
            if (f["scratch"] or f["family"] == "rows")
            and f["activation"] in ("none", "relu")
            and f["dtypes"][0] in DTYPES
        ][part::PARTS]
        lib = kflib.build("cpu", functions, BUILD / "cpu", FLAGS)
    else:
        functions, lib = (
            [f for f in selection.of_schedules(("f32",)) if takes(f)],
            numeric.build_cpu("native", BUILD),
        )
    assert len(functions) > 15
    for f in functions:
        large = {
            "rows": [(600, 403), (601, 403), (70, 2500), (90000, 3)],
            "planes": [(6, 70, 500), (3, 5, 12000), (4000, 60, 1)],
            "heads": [(6, 10, 10, 403)],
            "groups": [(6, 1, 10, 40, 203), (4, 90, 3, 30, 1)],
        }
        for sizes in cases.of_form(f, large):
            checks.run(lib, memory, f, sizes)
