# SPDX-License-Identifier: Apache-2.0
"""The launch steps of a function, by the manifest, and launches that a call may make by them."""

import math
import re

from kfgen.model import steps

OPERATIONS = re.compile(r"[\w\s+*/(),]+")
BUFFER = "workspace."


def kernels(f):
    """Returns all kernels of a function, each once."""
    return steps.kernel_names(f["steps"])


def buffers(f, word):
    """Returns the buffers of the workspace that steps read, or write."""
    return {name for step in f["steps"] for name in step[word] if name.startswith(BUFFER)}


def pattern(found, depth=0):
    """Returns a regular expression of the launches that steps allow.

    A launch is the number of its kernel in `numbers`, then a semicolon. Steps of one loop run any
    number of times; a step with a condition may be missing.
    """
    text, i = "", 0
    while i < len(found):
        loop = found[i][1]["per"][depth : depth + 1]
        count = next(
            (j for j, (_, s) in enumerate(found[i:]) if s["per"][depth : depth + 1] != loop),
            len(found) - i,
        )
        if loop:
            text += f"(?:{pattern(found[i : i + count], depth + 1)})*"
        else:
            text += "".join(
                f"(?:{number};){'?' if step['when'] else ''}"
                for number, step in found[i : i + count]
            )
        i += count
    return text


def matched(f, launches):
    """Returns the (step, launch, recorded launch) of each launch, or None if the function's steps
    do not allow this sequence. A kernel of several steps is matched to each of them.

    Args:
        launches: objects with a method name().
    """
    of = {}
    for number, step in enumerate(f["steps"]):
        for launch in step["launches"]:
            for name in launch["kernels"]:
                of.setdefault(name, []).append((number, step, launch))
    texts = [""]
    for one in launches:
        texts = {f"{t}{number};" for t in texts for number, *_ in of.get(one.name(), ())}
    whole = re.compile(pattern(list(enumerate(f["steps"]))))
    found = next((text for text in sorted(texts) if whole.fullmatch(text)), None)
    if found is None:
        return None
    numbers = map(int, found.split(";")[:-1])
    return [
        (f["steps"][number], launch, one)
        for number, one in zip(numbers, launches)
        for other, _, launch in of[one.name()]
        if other == number
    ]


def extents(text, sizes):
    """Returns the numbers of a grid or block that is an expression of the sizes alone, else None.

    Args:
        sizes: {size: number}.
    """
    if not OPERATIONS.fullmatch(text):
        return None
    if set(re.findall(r"[A-Za-z_]\w*", text)) - {"ceil", *sizes} or re.search(r"\w\s+\w", text):
        return None
    found = eval(f"({text},)", {"__builtins__": {}, "ceil": math.ceil}, dict(sizes))
    return tuple(found) if all(type(n) is int for n in found) else None
