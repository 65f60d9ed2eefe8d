# SPDX-License-Identifier: Apache-2.0
"""Ops whose operands, results and scalars have the names of identifiers in generated code.

Each entry is rendered with plain names, and with odd names as often as needed to use every
identifier once. Both functions must give the same bits: otherwise a user's name collides with
generated code. Used by tests of all backends.
"""

import re

import cases
import checks
import kflib
from kfgen.entries import spec
from kfgen.families import FAMILIES
from kfgen.model.entries import usable
from kfgen.render.render import Renderer, Selection

# Names in angle brackets are replaced; the plain version keeps them as they are here.
ENTRIES = {
    "elementwise": [
        """
operands = { <a> = "elem", <b> = "elem", <r> = "row", <q> = { kind = "row", dtype = "acc" } }
scalars = { <s> = 2.0 }
outputs = { <y> = "act(dropout(<a> * <s> + <r>) * <b> + exp(<q>))" }
refs = { <y> = "act(dropout(<a> * <s> + <r>) * <b> + np.exp(<q>))" }
""",
        """
operands = { <x> = { kind = "half", parts = ["<g>", "<u>"] }, <r> = { kind = "row", grad = false } }
outputs = { <y> = "act(<g>) * (<u> + <r>)" }
refs = { <y> = "act(<g>) * (<u> + <r>)" }
""",
        """
operands = { <a> = "elem", <c> = "channel", <w> = "channel" }
scalars = { <s> = 2.0 }
expr = "act(<a> * exp(<c> * <s>) + <w>)"
ref = "act(<a> * np.exp(<c> * <s>) + <w>)"
""",
    ],
    "rows": [
        """
saved = { <l> = "sum(<a> + <m>)" }
expr = "dropout(act(<a> * <s> - <l> * <p> + where(column <= query + (count - queries), <m>, <k>)))"
ref = '''dropout(act(<a> * <s> - sum(<a> + <m>) * <p>
    + np.where(column <= query + (count - queries), <m>, <k>)))'''
scalars = { <s> = 2.0 }
operands.<a> = "elem"
operands.<m> = { kind = "shared", absent = 0, grad = false }
operands.<k> = { kind = "shared", dtype = "u8", grad = false }
operands.<p> = "per_row"
""",
        """
operands = { <a> = "elem", <w> = { kind = "row", absent = 1 }, <b> = "row" }
saved = { <m> = "mean(<a>)", <d> = "rsqrt(mean((<a> - <m>) * (<a> - <m>)) + <s>)" }
scalars = { <s> = 0.5 }
outputs = { <y> = "act((<a> - <m>) * <d> * <w> + <b>)" }
refs = { <y> = "act((<a> - mean(<a>)) / np.sqrt(mean((<a> - mean(<a>)) ** 2) + <s>) * <w> + <b>)" }
""",
        """
operands = { <a> = "elem", <c> = "channel" }
expr = "act(<a> * <c> * max(<a>))"
ref = "act(<a> * <c> * max(<a>))"
""",
        """
operands = { <a> = "elem", <c> = { kind = "group", absent = 1 } }
saved = { <l> = "max(<a>)" }
expr = "act(<a> * <c> * <l> + column / count)"
ref = "act(<a> * <c> * max(<a>) + column / count)"
""",
        """
layout = "channels"
operands.<a> = "elem"
operands.<r> = "per_row"
operands.<k> = { kind = "per_row", dtype = "acc", grad = false }
updates = { <k> = "<k> + max(<a>)" }
refs = { <k> = "<k> + max(<a>)" }
expr = "act(<a> * <r> * max(<a>))"
ref = "act(<a> * <r> * max(<a>))"
""",
        """
operands = { <a> = "elem", <n> = { kind = "per_row", dtype = "I", grad = false } }
scalars = { <s> = 0.5, <i> = { kind = "int", value = 1, default = -1 } }
saved = { <l> = "log(sum(exp(<a>)))" }
outputs = { <y> = "where(<n> == <i>, 0, <l> - pick(<a>, <n>)) * <s>" }
refs = { <y> = "np.where(<n> == <i>, 0, np.log(sum(np.exp(<a>))) - pick(<a>, <n>)) * <s>" }
""",
    ],
    "reduction": [
        """
operands = { <a> = "elem", <b> = "elem" }
scalars = { <s> = 2.0 }
outputs = { <y> = "mean(act(<a> - max(<b> * <s>)))" }
refs = { <y> = "mean(act(<a> - max(<b> * <s>)))" }
"""
    ],
    "matmul": [
        """
operands = { <x> = "left", <g> = "left", <w> = "right", <r> = "row", <e> = "elem" }
scalars = { <s> = 2.0 }
load = { <h> = "act(<g>) * <x>" }
products = { <p> = "<h> * <w>" }
outputs = { <y> = "<p> * <s> + <r> + <e>" }
refs = { <y> = "<p> * <s> + <r> + <e>" }
""",
        """
operands = { <x> = "left", <w> = "right", <v> = "right", <d> = { kind = "depth", absent = 0 } }
load = { <h> = "<x> + <d>" }
products = { <p> = "<h> * <w>", <q> = "<h> * <v>" }
saved = { <t> = "<p>", <u> = "<q>" }
expr = "act(<t>) * <u>"
ref = "act(<p>) * <q>"
""",
    ],
}
for _name, _entries in cases.merged("NAMES").items():
    ENTRIES[_name] = ENTRIES.get(_name, []) + _entries
HOLE = re.compile(r"<(\w+)>")
# An activation with a scalar whose gradient reads its argument or result; for products, one that
# they have.
ACTIVATION = dict.fromkeys(ENTRIES, "elu") | {"matmul": "silu"}


def code(text):
    """Removes comments, strings and preprocessor lines except macro definitions."""
    text = re.sub(r'/\*.*?\*/|//[^\n]*|"[^"\n]*"', " ", text, flags=re.S)
    return re.sub(r"^[ \t]*#(?!define).*$", " ", text, flags=re.M)


# Public names that functions add to those of their operands: gradients, fields of strides, an
# activation's scalars.
TAKEN = re.compile(r"d?out(_(outer|length|head|batch))?|elu_alpha|beta|padding_idx|d?zz.*")


def identifiers(texts):
    """Returns (identifiers of `texts` that may be operand names, suffixes that generated code
    appends to operand names)."""
    found = {word for text in texts for word in re.findall(r"\b[A-Za-z_]\w*", code(text))}
    longer = {
        made[1] for word in found if (made := re.fullmatch(r"kfi_d?zz[a-z]0_([a-z_]+)", word))
    } - {"out"}
    return sorted(word for word in found if usable(word) and not TAKEN.fullmatch(word)), sorted(
        longer
    )


def filled(entry, names):
    return HOLE.sub(lambda m: names[m[1]], entry)


def holes(entry):
    return list(dict.fromkeys(HOLE.findall(entry)))


def op(family, name, entry, names):
    """Returns the entry with `names` in its holes."""
    act = "act(" in entry
    head = [
        f'[op."{name}{"_{act}" if act else ""}{"_dropout" if "dropout(" in entry else ""}"]',
        f'family = "{family}"',
        'brief = "names"',
    ]
    return "\n".join([*head, *['without = ["none"]'] * act]) + filled(entry, names)


def plain_names(entry):
    """Returns {hole: a name that nothing else has}."""
    return {hole: f"zz{hole}" for hole in holes(entry)}


def spread(family, names, longer):
    """Returns [(index of the entry, {hole: name})] that use each name once, and each suffixed form
    beside its base name."""
    left, more, found = list(names), list(longer), []
    while left or more:
        number = len(found) % len(ENTRIES[family])
        taken = {}
        for hole in holes(ENTRIES[family][number]):
            first = next(iter(taken.values()), None)
            taken[hole] = (
                f"{first}_{more.pop()}"
                if first and more and len(taken) % 2
                else left.pop()
                if left
                else f"spare_{hole}"
            )
        found.append((number, taken))
    return found


def pairs(family, folder):
    """Returns (spec file, [(function with plain names, its companion with odd names)], names), with
    the headers rendered into `folder`."""
    path = folder / f"{family}.toml"

    def selected(text):
        path.write_text(text)
        loaded = spec.load([path])
        own = [o.pattern for o in loaded.ops.values() if not o.builtin]
        return Selection(loaded, own, activations=[ACTIVATION[family]], dtypes=["f32"])

    plain = "\n".join(
        op(family, f"plain{i}", entry, plain_names(entry))
        for i, entry in enumerate(ENTRIES[family])
    )
    made = Renderer(selected(plain), family).render()
    names, longer = identifiers(
        text
        for header, text in made.items()
        if header.startswith("kf/user/") and "/activations" not in header
    )
    fixed = {*FAMILIES[family].taken, *as_they_are(path)}
    names = [n for n in names if n not in fixed]
    odd = spread(family, names, longer)
    wanted = selected(
        plain
        + "\n".join(
            op(family, f"odd{i}", ENTRIES[family][number], taken)
            for i, (number, taken) in enumerate(odd)
        )
    )
    functions = {f["name"]: f for f in kflib.write(wanted, folder, spec.user_stem([path]))}
    return (
        path,
        [
            (functions[re.sub(r"odd\d+", f"plain{odd[int(turn[1])][0]}", name)], f)
            for name, f in functions.items()
            if (turn := re.search(r"odd(\d+)", name))
        ],
        names,
    )


def made(once, family):
    """Returns pairs(), computed once per run for all backends and compilers. once: the fixture."""
    return once(f"odd names, {family}", lambda folder: pairs(family, folder))


def as_they_are(path):
    """Returns the names that entries of the file cannot choose, and those of their gradients."""
    found = {
        n
        for o in spec.load([path]).ops.values()
        if not o.builtin
        for n in (*(x.name for x in o.operands), *o.scalars, *o.outputs, *o.saved)
    }
    found = {n for n in found if not n.startswith("zz")}
    return found | {f"d{n}" for n in found}


def some(found, one_of):
    """Returns, at level 1, one of `one_of` pairs if a family has many: each pair uses only some of
    the identifiers."""
    return found if cases.LEVEL > 1 or len(found) < 4 * one_of else found[::one_of]


def all_of(found):
    """Returns the functions of the pairs, each once."""
    return list({f["name"]: f for pair in found for f in pair}.values())


def compare(lib, memory, path, plain, f):
    """Checks that both functions write the same bytes for the same inputs."""
    for sizes in shapes(plain):
        call = checks.Layout(lib, plain, sizes, files=(path,))
        memory.spans = call.spans()
        results = []
        for g in (plain, f):
            given = call.given
            rename = {
                a["name"]: b["name"]
                for a, b in zip(plain["arguments"], g["arguments"], strict=True)
            }

            def called(base, g=g, given=given, rename=rename):
                return lib.call(g, {rename.get(n, n): v for n, v in given(base).items()})

            code_, back = memory.run(call.image, called)
            assert code_ == 0, f"{g['name']} {sizes}: {lib.detail}"
            call.untouched(back)
            results.append(call.outputs(back))
        for name, want in results[0].items():
            assert (want.view("u1") == results[1][name].view("u1")).all(), (
                f"{f['name']} {sizes}: {name}"
            )


def shapes(f):
    """Returns sizes with rows of whole vectors and with unaligned rows."""
    if own := cases.own(f):
        return [sizes for sizes, _ in own.SHAPES[:3]]
    return cases.of_form(
        f,
        {
            "flat": [(1000,)],
            "rows": [(5, 64), (3, 37)],
            "planes": [(2, 3, 32), (2, 3, 9)],
            "heads": [(2, 2, 4, 32), (1, 2, 3, 7)],
            "groups": [(2, 1, 2, 4, 8), (2, 3, 2, 4, 1)],
        },
    )
