# SPDX-License-Identifier: Apache-2.0
"""Composes all generated names. Nothing parses a name back into its parts.

A function: kf_[cpu_]<pattern><suffixes>_<dtypes>[_i32]; the suffixes are, in this order and all
optional: _varlen, _stochastic, _state, _device, _bwd, _unordered.
"""

from kfgen.model.dtypes import INDEX

# Words between pattern and dtypes, in order. Launchers add `state` and directions add `bwd`;
# entries declare the others (`variants`):
# varlen: packed sequences of different lengths; stochastic: results rounded at random;
# device: scalars in device memory; unordered: a gradient whose sums have no fixed order.
SUFFIXES = ("varlen", "stochastic", "state", "device", "bwd", "unordered")
VARIANTS = tuple(word for word in SUFFIXES if word not in ("state", "bwd"))
OF_GRADIENTS = ("unordered",)  # variants that only backwards have
# Placeholder of entries for several layouts, which become an op each.
LAYOUT = "{layout}"


def fill(pattern, word):
    """Replaces {act} by the activation's name; `none` is dropped with its underscore."""
    return _replaced(pattern, "{act}", "" if word == "none" else word)


def fill_layout(pattern, layout):
    """Replaces {layout} by a layout's name; the default one, "", is dropped with its underscore."""
    return _replaced(pattern, LAYOUT, layout)


def _replaced(pattern, placeholder, word):
    if word:
        return pattern.replace(placeholder, word)
    return "_".join(w for w in pattern.split("_") if w != placeholder)


def stem(pattern):
    """Names an op's header and its kernels: add, bias_act_add, act_mul."""
    return fill(pattern, "none") if pattern.endswith("_{act}") else pattern.replace("{act}", "act")


def words(types):
    """Returns the dtypes in a function's name: the first type variable's, those of others that
    differ from it, and an index dtype other than i64.

    Args:
        types: {type variable: dtype}; the variable I is the index dtype.
    """
    first, *others = (d for variable, d in types.items() if variable != "I")
    index = types.get("I", INDEX[0])
    return (first, *(d for d in others if d != first), *([index] if index != INDEX[0] else []))


def dtype_words(dtypes):
    """Joins the dtypes of the type variables, without those equal to the first. The last one is the
    index dtype if it is not i64.
    """
    return "_".join([dtypes[0]] + [d for d in dtypes[1:] if d != dtypes[0]])


def suffixes(bwd=False, state=False, variant=()):
    """Sorts the suffixes of a name."""
    given = {*variant, *(["bwd"] if bwd else []), *(["state"] if state else [])}
    if not given <= set(SUFFIXES):
        raise ValueError(f"{', '.join(sorted(given - set(SUFFIXES)))}: not a suffix of a name")
    return [word for word in SUFFIXES if word in given]


def function(pattern, word, dtypes, bwd=False, state=False, cpu=False, variant=()):
    """Names a launcher. variant: suffixes that the entry declares."""
    found = ["kf", "cpu" if cpu else "", fill(pattern, word), *suffixes(bwd, state, variant)]
    return "_".join(w for w in [*found, dtype_words(dtypes)] if w)


def formula(pattern, word, bwd=False, by=False, variant=()):
    """Names the formula of an op, an activation and a direction. by: gradient from the result."""
    found = [fill(pattern, word), *suffixes(bwd, variant=variant)]
    return "_".join([*found, *(["by_result"] if by else [])])


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


def internal(prefix, pattern, dtypes, bwd=False, cpu=False, variant=()):
    prefix = f"{prefix}_cpu" if cpu else prefix
    found = (prefix, stem(pattern), *suffixes(bwd, variant=variant), dtype_words(dtypes))
    return "_".join(w for w in found if w)


def seam(word, pattern, act, by, flavour):
    """Names a prologue or epilogue function of a matrix product. act is empty if the function
    serves all activations.
    """
    return "_".join(
        w for w in (f"kfi_{word}", stem(pattern), act, "by_result" if by else "", flavour) if w
    )
