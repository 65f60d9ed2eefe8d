# SPDX-License-Identifier: Apache-2.0
"""A user's ops that combine what no op of kf combines, and ops that name a family's former name."""

import tomllib

import cases
import checks
import kflib
import pytest
from kfgen import families
from kfgen.cli import main
from kfgen.entries import spec as specs
from kfgen.entries.fields import Fields
from kfgen.model.entries import Spec
from kfgen.paths import called

# Combinations that no op of kf has: several outputs, a packed operand with dropout and scalars,
# integers, operands without a gradient.
UNUSUAL = """
[op."butterfly_{act}"]
brief = "act(a + b) and (a - b) * w"
operands = { a = "elem", b = "elem", w = "row" }
outputs = { total = "act(a + b)", delta = "(a - b) * w" }
refs = { total = "act(a + b)", delta = "(a - b) * w" }
[op."scaled_{act}_drop"]
brief = "dropout(act(lo + r) * hi * gain) + y"
operands.x = { kind = "half", parts = ["lo", "hi"] }
operands.r = { kind = "row", grad = false }
operands.y = "elem"
scalars = { gain = 2.0 }
expr = "dropout(act(lo + r) * hi * gain) + y"
ref = "dropout(act(lo + r) * hi * gain) + y"
[op.int_mix]
brief = "max(a * b, 3) where a < b, a - b elsewhere"
operands = { a = "elem", b = "elem" }
expr = "where(a < b, max(a * b, 3), a - b)"
ref = "np.where(a < b, np.maximum(a * b, 3), a - b)"
ints = true
[op.spaced_drop]
brief = "dropout of 2 x"
operands = { x = "elem" }
expr = "dropout (x * 2)"
ref = "dropout (x * 2)"
[op.stopped]
brief = "x * log(c) * stop"
operands.x = "elem"
operands.stop = { kind = "elem", grad = false }
operands.c = { kind = "channel", positive = true }
expr = "x * log(c) * stop"
ref = "x * np.log(c) * stop"
"""


@pytest.mark.check
def test_unusual_ops(tmp_path, capsys):
    path = tmp_path / "unusual.toml"
    path.write_text(UNUSUAL)
    assert main(["check", "--spec", str(path)]) == 0, capsys.readouterr().err
    functions = [
        f
        for f in kflib.manifest((path,))["functions"]
        if f["header"].startswith("kf/user") and f["activation"] in ("none", "gelu")
    ]
    assert {f["dtypes"][0] for f in functions if f["op"] == "int_mix"} == {
        "f32",
        "f16",
        "bf16",
        "f64",
        "i32",
        "i64",
    }
    lib = kflib.build("cpu", functions, tmp_path, ("-O2",), include=kflib.render(tmp_path, (path,)))
    memory = checks.CpuMemory()
    for f in functions:
        checks.run(
            lib,
            memory,
            f,
            cases.of_form(f, {"flat": (1000,), "rows": (5, 300), "planes": (2, 3, 304)}),
            files=(path,),
        )


@pytest.mark.parametrize("former, name", families.SYNONYMS.items())
def test_former_names_of_families(former, name, tmp_path):
    """A spec file may call a family what it was called before: the entries are the same."""
    [op, *_] = [o for o in specs.load().ops.values() if o.family == name and not o.reduction]
    [path] = [p for p in specs.builtin_files() if called(p) == op.file]
    entry = tomllib.loads(path.read_text())["op"][op.pattern]
    found = [
        specs.load_op(
            made := Spec({}, {}, []),
            "mine.toml",
            op.pattern,
            Fields("mine.toml", "op", entry | {"family": word}),
            False,
        )
        or made.ops[op.pattern]
        for word in (former, name)
    ]
    assert found[0] == found[1] and found[0].family == name
