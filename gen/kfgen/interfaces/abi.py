# SPDX-License-Identifier: Apache-2.0
"""The ABI of compiled launchers as text, identified by KF_ABI_VERSION.

Each line is `words: statement` and holds one fact per word. Facts may be added. A fact that is
removed or changed breaks compiled programs and requires a new version.
"""

import re

from kfgen import families
from kfgen.model import runtime_activation
from kfgen.model.dtypes import INT_DTYPES
from kfgen.model.entries import ANY_ID
from kfgen.paths import INCLUDE

CORE = INCLUDE / "kf/core"


def version():
    return int(re.search(r"#define KF_ABI_VERSION (\d+)", (CORE / "version.h").read_text())[1])


def _codes(header, enum):
    body = re.search(rf"enum (?:KFI_\w+ )?{enum} {{(.*?)}}", (CORE / header).read_text(), re.S)[1]
    return [(number, f"{enum} {name}") for name, number in re.findall(r"(KF_\w+) = (\d+)", body)]


def _structs():
    return [
        (name, f"struct {{ {' '.join(body.split())} }}")
        for body, name in re.findall(
            r"typedef struct \{(.*?)\} (\w+);", (CORE / "dtype.h").read_text(), re.S
        )
    ]


def _parameters(kernel, arguments):
    """Parameter texts. Type variables: element types of the function's name; S: type of its
    scalars.
    """
    tensors = {s.name: s for s in kernel.inputs + kernel.outputs}
    # The first of the variables with one dtype; indices come last.
    letters = {kernel.dtype_of(v).word: v for v in reversed(kernel.types)}

    def text(a):
        if a.name in tensors and a.role in ("in", "inout", "out"):
            s = tensors[a.name]
            letter = letters.get(s.dtype.word, s.dtype.word)
            one = f"{'const ' if a.role == 'in' else ''}{letter} *"
            return f"{one}{'const *' if s.is_list else ''}{a.name}"
        if a.role in ("scalar", "act_scalar", "beta", "probability"):
            return f"S {a.name}"
        if a.role == "activation_scalars":
            return f"const S *{a.name}"
        return f"{a.ctype}{a.name}"

    return [text(a) for a in arguments]


def _functions(selection):
    for k in selection.all_kernels():
        integers = ", integers" if k.dtypes[0] in INT_DTYPES else ""
        backward = f"{''.join(f', {word}' for word in k.variant)}{', backward' * k.bwd}"
        # One launcher per state: launchers of other activations differ only in their scalars.
        for first in [x for x in k.launchers if x.act is k.acts[0]]:
            what = f"{k.op.pattern}{', state' if first.state else ''}{backward}"
            own = [a for a in first.arguments if a.role != "act_scalar"]
            end = next(
                (i for i, a in enumerate(own) if a.role in ("probability", "workspace")), len(own)
            )
            parts = [
                *_parameters(k, own[:end]),
                *(["activation's scalars"] if k.has_act else []),
                *_parameters(k, own[end:]),
                "stream",
            ]
            yield k.words, f"{what} ({', '.join(parts)})"
            for act in k.acts if k.has_act else ():
                yield act.name, f"activations of {what}{integers}"
        for launcher in runtime_activation.kernel(k).launchers if runtime_activation.has(k) else ():
            state = ", state" if launcher.state else ""
            what = f"{k.op.pattern}{state}{backward}, activation as an argument"
            yield k.words, f"{what} ({', '.join([*_parameters(k, launcher.arguments), 'stream'])})"
        if k.has_workspace:
            yield (k.words, f"{k.op.pattern}{backward}, workspace_bytes ({k.size_parameters})")


def _strides(selection):
    """Yields each field of each strides struct. The structs may grow at their ends."""
    for op in selection.ops:
        for k in selection.kernels(op)[:1]:
            if k.strided:
                yield from (
                    (k.stride_struct, f"strides, number {i}: {name}")
                    for i, name in enumerate(k.stride_fields)
                )


def _shapes(selection):
    """Yields each field of each shape struct. The structs may grow at their ends."""
    for family in {op.family: families.of(op) for op in selection.ops}.values():
        for i, field in enumerate(family.shape.fields if family.shape else ()):
            default = "" if field.default is None else f", 0 is {field.default}"
            yield family.shape.ctype, f"shape, number {i}: {field.name}{default}"


def facts(selection):
    """Returns the distinct (word, statement), in the order of the spec."""
    found = _codes("result.h", "kf_result_t") + _codes("dtype.h", "kf_dtype_t") + _structs()
    found += [
        (str(a.id), f"activation {a.name} ({', '.join(a.scalars)})") for a in selection.activations
    ]
    size, aligned = re.search(
        r"sizeof\(kf_rng_t\) == (\d+) && alignof\(kf_rng_t\) == (\d+)", (CORE / "rng.h").read_text()
    ).groups()
    found += [
        (size, "bytes of kf_rng_t"),
        (aligned, "alignment of kf_rng_t"),
        ("256", "alignment of a workspace, and of its size"),
    ]
    found += [
        (str(ANY_ID), "KF_ACT_ANY"),
        ("-9223372036854775808", "KF_BROADCAST"),
        *_strides(selection),
        *_shapes(selection),
    ]
    return list(dict.fromkeys([*found, *_functions(selection)]))


def text(selection):
    lines = {}
    for word, statement in facts(selection):
        lines.setdefault(statement, []).append(word)
    return f"{version()}: KF_ABI_VERSION\n" + "".join(
        f"{' '.join(words)}: {statement}\n" for statement, words in lines.items()
    )


def parse(text_):
    """Parses such a text into (version, facts)."""
    lines = [line.split(": ", 1) for line in text_.splitlines()]
    found = {(word, statement) for words, statement in lines for word in words.split()}
    return next(int(word) for word, statement in found if statement == "KF_ABI_VERSION"), {
        f for f in found if f[1] != "KF_ABI_VERSION"
    }


def broken(before, now):
    """Facts that were changed or removed although both texts have the same version."""
    (old_version, old), (new_version, new) = parse(before), parse(now)
    return sorted(old - new) if old_version == new_version else []
