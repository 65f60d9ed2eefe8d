# SPDX-License-Identifier: Apache-2.0
"""argmax and argmin, of family reduction: faults, names and specs to test."""

# Faults to plant and the functions that must fail: tests/emu/test_seeded.py.
FAULTS = {
    "index of the last of equal elements": (
        "kf/core/reduction/argreduce.cuh",
        r"b <= a : b >= a",
        "b < a : b > a",
        ("kf_argmax_f32", "kf_argmin_bf16"),
        (),
    ),
    "index among the rows of one thread": (
        "kf/core/reduction/argreduce.cuh",
        r"\(kf_i64\)vector\[e\] << g\.y",
        "(kf_i64)vector[e]",
        ("kf_argmax_f32",),
        (),
    ),
    "the last of equal elements in the packed kernel": (
        "kf/core/reduction/argreduce.cuh",
        r"int e = vec - 1; e >= 0; --e",
        "int e = 0; e < vec; ++e",
        ("kf_argmax_bf16",),
        (),
    ),
    "the best of later vectors": (
        "kf/core/reduction/argreduce.cuh",
        r"KFI_ARGREDUCE_NUMBERS - \(unsigned long long\)number",
        "(unsigned long long)number",
        ("kf_argmax_bf16", "kf_argmin_f16"),
        (),
    ),
}
# Faults in C: tests/cpu/test_mutation.py.
BROKEN = {
    "argmax: the last of equal elements": (
        "kf/core/reduction/argreduce.h",
        r"KFI_CPU_ARGREDUCE\(max, f32, float, uint32_t, le\)",
        "KFI_CPU_ARGREDUCE(max, f32, float, uint32_t, lt)",
        ("kf_cpu_argmax_f32", "kf_cpu_argmax_bf16"),
    ),
    "argmax: every lane has the index of the first": (
        "kf/core/reduction/argreduce.h",
        r"strip\[j\] \* m->down \+ k;",
        "strip[j] * m->down;",
        ("kf_cpu_argmax_f32", "kf_cpu_argmin_f64"),
    ),
    "argmax: every part stores to the first part": (
        "kf/core/reduction/argreduce.h",
        r"memcpy\(indices \+ u->part \* m->results",
        "memcpy(indices + 0 * u->part * m->results",
        ("kf_cpu_argmin_f32",),
    ),
}
# tests/support/functions/odd_names.py has these entries with all the names that there are.
NAMES = {
    "reduction": [
        """
operands = { <a> = { kind = "elem", grad = false } }
outputs = { <y> = "max(<a>)", <i> = "argmax(<a>)" }
refs = { <y> = "max(<a>)", <i> = "argmax(<a>)" }
"""
    ]
}
# Expected functions: tests/gen/test_names.py.
FUNCTIONS = dict.fromkeys(("argmax", "argmin"), (0, True, "with numbers of 32 bits too", False))
PACKAGED = ["argmax"]  # the Python package of level 1 has it


# Invalid entries: (text, entry, field, message, fix); tests/gen/test_spec_errors.py.
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
    "an index with a gradient": (
        reduce('{ out = "argmax(x)" }'),
        "op.total",
        "outputs",
        "more than one index and the value at that index",
        "grad = false",
    ),
    "an index within an expression": (
        reduce('{ out = "argmax(x) + 1" }', NO_GRADIENT),
        "op.total",
        "outputs",
        "more than one index",
        "argmax(x)",
    ),
    "an index and an unrelated value": (
        reduce('{ out = "min(x)", index = "argmax(x)" }', NO_GRADIENT),
        "op.total",
        "outputs",
        "more than one index",
        "argmax(x)",
    ),
    "the index of a sum": (
        reduce('{ out = "argmax(sum(x))" }'),
        "op.total",
        "expr",
        "calls `argmax` of 1 arguments",
        "docs/expressions.md",
    ),
    "an index in an op over rows": (
        reduce('{ out = "argmax(x)" }', family="rows"),
        "op.total",
        "expr",
        "calls `argmax`; the functions are",
        "docs/expressions.md",
    ),
}

# Entries of a user: tests/families/reduction/test_emu.py.
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
