# SPDX-License-Identifier: Apache-2.0
"""Composes all generated names. Nothing parses a name back into its parts."""


def fill(pattern, word):
    """Replaces {act} by the activation's name; `none` is dropped with its underscore."""
    if word != "none":
        return pattern.replace("{act}", word)
    return "_".join(w for w in pattern.split("_") if w != "{act}")


def stem(pattern):
    """Names an op's header and its kernels: add, bias_act_add, act_mul."""
    return fill(pattern, "none") if pattern.endswith("_{act}") else pattern.replace("{act}", "act")


def dtype_words(dtypes):
    """Joins the dtypes of the type variables, without those equal to the first. The last one is the
    index dtype if it is not i64.
    """
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
    """Names the formula of an op, an activation and a direction. by: gradient from the result."""
    return fill(pattern, word) + ("_bwd" if bwd else "") + ("_by_result" if by else "")


def workspace(function_):
    """Names the function that returns a function's workspace size."""
    return f"{function_}_workspace_bytes"


def strides(pattern):
    """Names the struct of an op's strides."""
    return f"kf_{stem(pattern)}_strides_t"


def scalar(word, bwd=False, double=False):
    """Names the function of an activation on one element. It has no dtype, unlike launchers.
    double: a name of its own, since C has no overloads.
    """
    return "_".join(w for w in ("kf", word, "bwd" if bwd else "", "double" if double else "") if w)


def folder(user=None):
    """Folder of the ops' headers."""
    return f"kf/user/{user}" if user else "kf/ops"


def folder_any(user=None):
    """Folder of the headers of functions with a run-time activation."""
    return f"{folder(user)}/any" if user else "kf/any"


def launchers(user=None, dtype=""):
    """Names the file of launchers with C linkage and the prefix of its functions; without a dtype,
    the header of all.
    """
    return "_".join(w for w in ("kf", user or "", "launchers", dtype) if w)


def gradient_of(name):
    """Names the gradient of an operand or a result."""
    return f"kfi_d{name.removeprefix('kfi_')}" if name.startswith("kfi_") else f"d{name}"


def renamed(name):
    """Names an operand, a result or a scalar in generated code. The name ends in a digit: names
    that the code derives from it (kfi_x0_f) then differ from those of other operands (x_f:
    kfi_x_f0).
    """
    return f"kfi_{name}0"


def internal(prefix, pattern, dtypes, bwd=False, cpu=False):
    prefix = f"{prefix}_cpu" if cpu else prefix
    return "_".join(
        w for w in (prefix, stem(pattern), "bwd" if bwd else "", dtype_words(dtypes)) if w
    )


def seam(word, pattern, act, by, flavour):
    """Names a prologue or epilogue function of a matrix product. act is empty if the function
    serves all activations.
    """
    return "_".join(
        w for w in (f"kfi_{word}", stem(pattern), act, "by_result" if by else "", flavour) if w
    )
