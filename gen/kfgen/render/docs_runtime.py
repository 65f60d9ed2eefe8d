# SPDX-License-Identifier: Apache-2.0
"""Values of the reference page of <kf/runtime.h> and of functions that call several ops: their
declarations with their comments."""

import re
from dataclasses import dataclass, field

from kfgen import paths
from kfgen.entries import compositions

HEADER = paths.INCLUDE / "kf/runtime.h"
FIRST = "Types and constants"  # the declarations before the header's first section
ITEM = re.compile(
    r"/\*(?P<comment>.*?)\*/"
    r"|(?P<macro>#define[^\n]*)"
    r"|(?P<struct>typedef struct \w+ \{.*?\} \w+;[^\n]*)"
    r"|(?P<inline>static inline [^{;]*?)\s*\{.*?\n\}"
    r"|(?P<declaration>[a-z][^;#]*;(?: */\*[^\n]*)?)",
    re.S,
)


@dataclass
class Group:
    """Consecutive declarations and the comment above them."""

    comment: str
    declarations: list = field(default_factory=list)


@dataclass
class Section:
    title: str
    text: str
    groups: list = field(default_factory=list)
    structs: list = field(default_factory=list)  # (comment, declaration)


def joined(text):
    """Returns a comment as one line, without the stars at the beginning of its lines."""
    return " ".join(re.sub(r"^\s*\* ?", "", line).strip() for line in text.split("\n")).strip()


def coded(text):
    """Marks the names of kf in prose as code."""
    return re.sub(r"(?<![\w`])(?:kf|KF)_\w+\*?(?:\(\))?(?![\w`])", r"`\g<0>`", text)


def sentence(text):
    return text[:1].upper() + text[1:]


def introduction(text):
    """Paragraphs of the comment at the top of the header, without its title; code is indented."""
    lines = [re.sub(r"^\s*\* ?", "", line) for line in text.split("\n")]
    paragraphs = "\n".join(lines).strip().split("\n\n")
    first = sentence(re.sub(r"^kf/runtime\.h: ", "", " ".join(paragraphs[0].split())))
    return [coded(first.replace("(docs/runtime.md)", "([guide](../runtime.md))"))] + [
        p.rstrip() if p.startswith("    ") else coded(" ".join(p.split())) for p in paragraphs[1:]
    ]


def section(comment):
    """Returns the section that a comment `---- title: text` begins."""
    title, text = re.match(r"-+ ([^:.]+)[:.]\s*(.*)", comment, re.S).groups()
    return Section(sentence(title), coded(sentence(text)))


def add(found, kind, text):
    """Adds a declaration to a section."""
    groups = found.groups
    if kind == "struct":
        comment = groups.pop().comment if groups and not groups[-1].declarations else ""
        return found.structs.append((comment, text))
    if not groups:
        groups.append(Group(""))
    text, _, remark = " ".join(text.split()).partition(" /*")
    if remark:
        return groups.append(Group(coded(sentence(remark[:-2].strip())), [text]))
    groups[-1].declarations.append(
        f"{text.removeprefix('static inline ')};" if kind == "inline" else text
    )


def sections(text):
    """Yields the sections of the header's declarations."""
    body = text.split('extern "C" {\n#endif\n')[1].split("\n#ifdef __cplusplus")[0]
    found = Section(FIRST, "")
    for m in ITEM.finditer(body):
        kind, item = m.lastgroup, m[m.lastgroup].strip()
        if kind != "comment":
            add(found, kind, item)
        elif (comment := joined(item)).startswith("----"):
            yield found
            found = section(comment)
        else:
            found.groups.append(Group(coded(comment)))
    yield found


def values():
    """Returns the variables of templates/docs/runtime.md.j2."""
    text = HEADER.read_text()
    top = text.split("/*", 2)[2].split("*/")[0]
    more = [paths.INCLUDE / "kf/runtime" / header for header in compositions.headers()]
    found = [s for t in (text, *(path.read_text() for path in more)) for s in sections(t)]
    for s in found:
        s.groups = [g for g in s.groups if g.declarations]
    return {
        "introduction": introduction(top),
        "sections": [s for s in found if s.groups or s.structs],
    }
