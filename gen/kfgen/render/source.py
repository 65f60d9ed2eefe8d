# SPDX-License-Identifier: Apache-2.0
"""One kernel as a single text: its headers, reduced to it, with kf's includes expanded."""

import difflib
import re

from kfgen import families
from kfgen.model import names, steps
from kfgen.render.render import ROOT, Renderer, Selection, with_acts

INCLUDE = re.compile(r'\s*#\s*include\s*["<]([^">]+)[">]')
DIRECTIVE = re.compile(r"\s*#\s*(ifndef|ifdef|if|elif|else|endif|define)\b\s*(.*)")

GUARD = re.compile(r"^#ifndef (\w+)\n#define \1$", re.M)

QUIET = """#ifdef __NVCC_DIAG_PRAGMA_SUPPORT__
#pragma nv_diag_suppress 177  // functions that other kernels would use
#endif

"""


def _named(kernels):
    """Returns {name: (launcher, True if the name is the C function's)}."""
    return {
        name: (launcher, cpu)
        for k in kernels
        for launcher in k.launchers
        for name, cpu in ((launcher.name, False), (launcher.cpu_name, True))
    }


def _may_have(selection, op, name):
    """True if the op may have a function of this name.

    Expanding all kernels of all ops to find out takes a second.
    """
    begins = {
        f"kf_{cpu}{names.fill(op.pattern, a.name)}_"
        for a in selection.activations
        for cpu in ("", "cpu_")
    }
    return any(name.startswith(begin) for begin in begins)


def _lacks(selection, name):
    """Returns why kf has no function of this name, if only the op's activation is another one."""
    for op in selection.ops if any(_may_have(selection, o, name) for o in selection.ops) else ():
        missing = (
            [a for a in selection.activations if a not in op.activations] if op.has_act else []
        )
        for k in selection.kernels(op) if missing else ():
            for act in missing:
                calls = [(state, cpu) for state in (False, k.dropout) for cpu in (False, True)]
                if name in (k.function(act.name, state, cpu) for state, cpu in calls):
                    has = ", ".join(a.name for a in op.activations)
                    return f"{names.stem(op.pattern)} has no {act.name}; it has: {has}"
    return ""


def find(selection, name):
    """Returns (launcher, True if the name is the C function's).

    A name of kf.ops stands for the CUDA function in float32.
    """
    for full in (name, f"kf_{name}_f32"):
        ops = [op for op in selection.ops if _may_have(selection, op, full)]
        known = _named(k for op in ops for k in selection.kernels(op))
        if full in known:
            return known[full]
    if lacks := _lacks(selection, name):
        raise ValueError(f"`{name}` is not a function of kf: {lacks}")
    known = _named(selection.all_kernels())
    near = difflib.get_close_matches(name, known, n=5, cutoff=0.4)
    raise ValueError(
        f"`{name}` is not a function of kf"
        + (f"; similar names: {', '.join(near)}" if near else "")
        + "; `kfgen list` shows all"
    )


def cut(selection, launcher):
    """Reduces the selection to this launcher's kernel and activation, and to what it calls."""
    return reduced(selection, [launcher.kernel], launcher.act)


def reduced(selection, kernels, act):
    """Reduces the selection to kernels of the same dtypes with one activation, and to the kernels
    that they call.
    """
    found, of = Selection(selection.spec), {}
    for kernel in dict.fromkeys(other for k in kernels for other in (k, *k.called_kernels)):
        of.setdefault(kernel.op.pattern, []).append(with_acts(kernel, [act]))
    found.ops = [selection.spec.ops[pattern] for pattern in of]
    found.activations, found.dtypes, found._kernels = [act], list(kernels[0].dtypes), of
    return found


def inline(path, files, inlined=lambda header: True):
    """Expands includes of kf and of users' families in files[path], or in a header of include/.

    A header is written once. The include guards stay, so a header that first appears inside an #if
    may appear again outside it. A header without a guard is written at each include, since its
    text depends on macros (core/matmul/width.h).

    Args:
        inlined: True for headers that are expanded; other includes stay.
    """
    seen = {}  # header: lists of the #if conditions that it was written under

    def read(path):
        text = files[path] if path in files else (ROOT / "include" / path).read_text()
        return text, GUARD.search(text)

    def is_own(header):
        return header.startswith("kf/") or header in files

    def expand(path, conditions):
        text, guard = read(path)
        stack, lines = list(conditions), []
        for line in text.splitlines():
            if (m := INCLUDE.match(line)) and is_own(m[1]) and inlined(m[1]):
                here = [c for c in stack if c]
                if not read(m[1])[1] or not any(
                    set(before) <= set(here) for before in seen.get(m[1], [])
                ):
                    seen.setdefault(m[1], []).append(here)
                    lines += expand(m[1], here)
                continue
            if m := DIRECTIVE.match(line):
                word, rest = m.groups()
                if word in ("if", "ifdef", "ifndef"):
                    stack.append(
                        "" if guard and word == "ifndef" and rest == guard[1] else f"{word} {rest}"
                    )
                elif word in ("elif", "else"):
                    stack[-1] += f" / {word} {rest}"
                elif word == "endif":
                    stack.pop()
            lines.append(line)
        return lines

    return re.sub(r"\n{3,}", "\n\n", "\n".join(expand(path, [])) + "\n")


def kernel_names(launcher):
    """Name expressions for nvrtcAddNameExpression: all instances that the launcher may launch."""
    k = launcher.kernel
    return steps.kernel_names(k.cuda.launch_steps(launcher)) if "cuda" in k.backends else []


def source(selection, name):
    launcher, cpu = find(selection, name)
    k = launcher.kernel
    files = Renderer(cut(selection, launcher), any_activation=False).render() | families.headers()
    text = inline(f"kf/ops/{names.stem(k.op.pattern)}{'.h' if cpu else '.cuh'}", files)
    return _about(launcher, cpu) + text


def _about(launcher, cpu):
    lines = [
        "SPDX-License-Identifier: Apache-2.0",
        f"{launcher.cpu_name if cpu else launcher.name} of kf in one text, by `kfgen source`. ",
    ]
    if cpu:
        lines[1] += "Compile as C11 or C++17, link with -lm."
        return "\n".join(["/* " + lines[0] + " */", "/* " + lines[1] + " */"]) + "\n"
    lines += [
        "With nvcc: call the launcher at the end of this file.",
        "With NVRTC, which needs only CUDA's include directory: pass the names of the instances",
        "that you launch to nvrtcAddNameExpression. They are among",
        *(f"    {n}" for n in kernel_names(launcher)),
        "Compile the same text with g++ and KF_LOAD_KERNEL (docs/nvrtc.md): the launcher then",
        "requests each kernel by its name and launches it.",
    ]
    return "".join(f"// {line}".rstrip() + "\n" for line in lines) + QUIET
