# SPDX-License-Identifier: Apache-2.0
"""Generated C and CUDA is laid out for readers: indentation, blank lines, 100 columns."""

import re

import kflib
import pytest
from kfgen.render import layout

COLUMNS = 100
LITERAL = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
# A line that holds one string literal, a choice's too, cannot be broken.
ONE_LITERAL = re.compile(r' *[{(]*([?:] )?"[^"]*"[^"]*$')


def code_lines(text):
    """Yields (number, line, line without comments and literals), without directives."""
    code = LITERAL.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
    continued = False
    for number, (line, bare) in enumerate(zip(text.split("\n"), code.split("\n"), strict=True), 1):
        directive = continued or bare.startswith("#")
        continued = directive and line.endswith("\\")
        if not directive:
            yield number, line, bare


def faults(text):
    """Returns [(line number, fault)] of a generated file."""
    found = [
        (number, "has more than 100 columns")
        for number, line in enumerate(text.split("\n"), 1)
        if len(line) > COLUMNS and not layout.one_line(line) and not ONE_LITERAL.match(line)
    ]
    depth, ended = 0, 0
    for number, line, bare in code_lines(text):
        if depth > 0 and line and line[0] not in " }":
            found.append((number, "stands at column 0 inside braces"))
        if ended == number - 1 and number > 1 and line:
            found.append((number, "follows a function without a blank line"))
        if not re.match(r'extern "C"|namespace', line):
            before, depth = depth, max(0, depth + bare.count("{") - bare.count("}"))
            ended = number if before > 0 and depth == 0 and line == "}" else ended
    return found + ([(number, "leaves braces open")] if depth else [])


def test_every_generated_file():
    found = [
        f"{path}:{number}: {fault}"
        for path, text in kflib.files().items()
        for number, fault in faults(text)
    ]
    assert not found, f"{len(found)} faults:\n" + "\n".join(found[:20])


GOOD = """#define KFI_ONE(x) \\
x
static int first(void)
{
    return 1;
}

static int second(int x)
{
    if (x) {
        return 2;
    }
#pragma unroll
    return 3; /* { */
}
"""


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("    return 1;", "return 1;", (5, "stands at column 0 inside braces")),
        ("        return 2;", "return 2;", (11, "stands at column 0 inside braces")),
        ("}\n\nstatic", "}\nstatic", (7, "follows a function without a blank line")),
        ("return 3;", f"return {'3 + ' * 30}3;", (14, "has more than 100 columns")),
        ("        return 2;\n    }\n", "        return 2;\n", (15, "leaves braces open")),
    ],
)
def test_each_fault_is_found(before, after, fault):
    assert faults(GOOD) == []
    assert GOOD.count(before) == 1
    assert fault in faults(GOOD.replace(before, after))


@pytest.mark.parametrize(
    ("raw", "tidy"),
    [
        ("{\nif (x)\n  f();\n}\n", "{\n    if (x)\n      f();\n}\n"),
        ("{\n  f(a,\n    b);\n}\n", "{\n    f(a, b);\n}\n"),
        ("void f()\n{\n}\nvoid g()\n{\n}\n", "void f()\n{\n}\n\nvoid g()\n{\n}\n"),
        (
            f"{{\nif ({'a' * 50}) f({'b' * 50});\n}}\n",
            f"{{\n    if ({'a' * 50})\n        f({'b' * 50});\n}}\n",
        ),
        (
            f"void f(int {'a' * 50}) {{ (void){'a' * 50}; return; }}\n",
            f"void f(int {'a' * 50})\n{{\n    (void){'a' * 50};\n    return;\n}}\n",
        ),
        # A comment may leave brackets open and end its lines as statements do.
        (
            "int a;\n/* f(a, ...\n   b;\n   c */\nvoid f()\n{\n}\n",
            "int a;\n\n/* f(a, ...\n   b;\n   c */\nvoid f()\n{\n}\n",
        ),
        (f"#define {'A' * 60} {'b' * 60}\n", f"#define {'A' * 60} \\\n    {'b' * 60}\n"),
        (
            f"f({'a' * 60}, g({'b' * 20}, {'c' * 20}));\n",
            f"f({'a' * 60},\n    g({'b' * 20}, {'c' * 20}));\n",
        ),
    ],
)
def test_layout(raw, tidy):
    assert layout.tidy(raw) == tidy
