# SPDX-License-Identifier: Apache-2.0
"""The one place where names are composed. Nothing parses a name back into its parts."""


def fill(pattern, word):
    """The pattern with the activation's word in its place; `none` takes its underscore with it."""
    if word != "none":
        return pattern.replace("{act}", word)
    return "_".join(w for w in pattern.split("_") if w != "{act}")


def stem(pattern):
    """The name of an op's header and of its kernels: add, bias_act_add, act_mul."""
    return fill(pattern, "none") if pattern.endswith("_{act}") else pattern.replace("{act}", "act")


def dtype_words(dtypes):
    """One word per type variable, those equal to the first left out; the last one is that of whole numbers, where they are not i64."""
    return "_".join([dtypes[0]] + [d for d in dtypes[1:] if d != dtypes[0]])


def function(pattern, word, dtypes, bwd=False, state=False, cpu=False):
    words = (
        "kf",
        "cpu" if cpu else "",
        fill(pattern, word),
        "state" if state else "",
        "bwd" if bwd else "",
        dtype_words(dtypes),
    )
    return "_".join(w for w in words if w)


def formula(pattern, word, bwd=False, by=False):
    """Of what all functions of an op, an activation and a direction compute. by: with the activation's gradient by its result."""
    return fill(pattern, word) + ("_bwd" if bwd else "") + ("_by_result" if by else "")


def workspace(function_):
    """Of a function: its companion, which says how much workspace it needs."""
    return f"{function_}_workspace_bytes"


def strides(pattern):
    """The struct of how far apart the rows of an op's tensors lie."""
    return f"kf_{stem(pattern)}_strides_t"


def scalar(word, bwd=False, double=False):
    """An activation on one element: no dtype word, which all launchers end with. double: C has no overloads."""
    return "_".join(w for w in ("kf", word, "bwd" if bwd else "", "double" if double else "") if w)


def folder(user=None):
    """Of the ops' headers."""
    return f"kf/user/{user}" if user else "kf/ops"


def folder_any(user=None):
    """Of the headers of functions whose activation is an argument."""
    return f"{folder(user)}/any" if user else "kf/any"


def launchers(user=None, dtype=""):
    """The file of launchers with C linkage, and what its own functions begin with; without a dtype, the header of all."""
    return "_".join(w for w in ("kf", user or "", "launchers", dtype) if w)


def gradient_of(name):
    """Of an operand or a result."""
    return f"kfi_d{name.removeprefix('kfi_')}" if name.startswith("kfi_") else f"d{name}"


def renamed(name):
    """What the generated code calls an operand, a result or a scalar. It ends in a digit: what the code makes of such names, it adds a word to
    (kfi_x0_f), so that none is that of another operand (x_f: kfi_x_f0)."""
    return f"kfi_{name}0"


def internal(prefix, pattern, dtypes, bwd=False, cpu=False):
    prefix = f"{prefix}_cpu" if cpu else prefix
    return "_".join(
        w for w in (prefix, stem(pattern), "bwd" if bwd else "", dtype_words(dtypes)) if w
    )


def seam(word, pattern, act, by, flavour):
    """A function of what happens to elements of a product's operands or results: of all activations that it does not call."""
    return "_".join(
        w for w in (f"kfi_{word}", stem(pattern), act, "by_result" if by else "", flavour) if w
    )
