# SPDX-License-Identifier: Apache-2.0
"""Of the family `reduce` those that find places, argmax and argmin."""

# Faults to plant, and who must notice: tests/emu/test_seeded.py.
FAULTS = {
    "the place of the last of equal ones": (
        "kf/core/reduction/argreduce.cuh",
        r"b <= a : b >= a",
        "b < a : b > a",
        ("kf_argmax_f32", "kf_argmin_bf16"),
        (),
    ),
    "a place among the rows of one thread": (
        "kf/core/reduction/argreduce.cuh",
        r"\(kf_i64\)turn\[e\] << g\.y",
        "(kf_i64)turn[e]",
        ("kf_argmax_f32",),
        (),
    ),
    "the last of equal elements, two at a time": (
        "kf/core/reduction/argreduce.cuh",
        r"int e = vec - 1; e >= 0; --e",
        "int e = 0; e < vec; ++e",
        ("kf_argmax_bf16",),
        (),
    ),
    "the best of the vectors that come later": (
        "kf/core/reduction/argreduce.cuh",
        r"KFI_PLACE_ENDS - \(unsigned long long\)number",
        "(unsigned long long)number",
        ("kf_argmax_bf16", "kf_argmin_f16"),
        (),
    ),
}
# The same in C: tests/cpu/test_mutation.py.
BROKEN = {
    "a place: the last of equal ones": (
        "kf/core/reduction/argreduce.h",
        r"KFI_CPU_PLACES\(max, f32, float, uint32_t, le\)",
        "KFI_CPU_PLACES(max, f32, float, uint32_t, lt)",
        ("kf_cpu_argmax_f32", "kf_cpu_argmax_bf16"),
    ),
    "a place: all lanes' of the first one's": (
        "kf/core/reduction/argreduce.h",
        r"turn\[j\] \* m->down \+ k;",
        "turn[j] * m->down;",
        ("kf_cpu_argmax_f32", "kf_cpu_argmin_f64"),
    ),
    "a place: every part's where the first one's is": (
        "kf/core/reduction/argreduce.h",
        r"memcpy\(places \+ u->part \* m->results",
        "memcpy(places + 0 * u->part * m->results",
        ("kf_cpu_argmin_f32",),
    ),
}
# tests/support/odd_names.py has these entries with all the names that there are.
NAMES = {
    "reduction": [
        """
operands = { <a> = { kind = "elem", grad = false } }
outputs = { <y> = "max(<a>)", <i> = "argmax(<a>)" }
refs = { <y> = "max(<a>)", <i> = "argmax(<a>)" }
"""
    ]
}
# Which functions there are: tests/gen/test_names.py.
FUNCTIONS = dict.fromkeys(("argmax", "argmin"), (0, True, "with numbers of 32 bits too", False))
PACKAGED = ["argmax"]  # that the Python package has which level 1 builds


# What is wrong with an entry: (text, entry, field, what the message says, what the fix says); tests/gen/test_spec_errors.py.
PLAIN, NO_GRADIENT = '{ x = "elem" }', '{ x = { kind = "elem", grad = false } }'


def reduce(outputs, operands=PLAIN, family="reduction"):
    return f'''[op.total]
family = "{family}"
brief = "x's"
operands = {operands}
outputs = {outputs}
refs = {outputs}
'''


REFUSED = {
    "a place that has a gradient": (
        reduce('{ out = "argmax(x)" }'),
        "op.total",
        "outputs",
        "more than one place and the value there",
        "grad = false",
    ),
    "a place among other things": (
        reduce('{ out = "argmax(x) + 1" }', NO_GRADIENT),
        "op.total",
        "outputs",
        "more than one place",
        "argmax(x)",
    ),
    "a place and another value": (
        reduce('{ out = "min(x)", index = "argmax(x)" }', NO_GRADIENT),
        "op.total",
        "outputs",
        "more than one place",
        "argmax(x)",
    ),
    "a place of a sum": (
        reduce('{ out = "argmax(sum(x))" }'),
        "op.total",
        "expr",
        "calls `argmax` of 1 arguments",
        "docs/hacking.md",
    ),
    "a place over rows": (
        reduce('{ out = "argmax(x)" }', family="rows"),
        "op.total",
        "expr",
        "calls `argmax`; the words are",
        "docs/hacking.md",
    ),
}

# Of a user's own: tests/emu/test_reduce.py.
OWN_OPS = ("farthest", "nearest")
OWN = """
[op.farthest]
family = "reduction"
brief = "where |x| is largest"
operands = { x = { kind = "elem", grad = false } }
outputs = { place = "argmax(abs(x))" }
refs = { place = "argmax(abs(x))" }
[op.nearest]
family = "reduction"
brief = "the smallest |x| * scale, and where it is"
operands = { x = { kind = "elem", grad = false } }
scalars = { scale = 2 }
outputs = { gap = "min(abs(x) * scale)", place = "argmin(abs(x) * scale)" }
refs = { gap = "min(np.abs(x) * scale)", place = "argmin(np.abs(x) * scale)" }
"""
