# SPDX-License-Identifier: Apache-2.0
"""The page docs/reference/family_interface.md: the attributes of `k`, `k.cuda` and `k.c` that
templates read. The line of a property or method is the first sentence of its docstring, any other
is in interface.toml.
"""

import functools
import tomllib

from jinja2 import nodes

from kfgen import families, paths
from kfgen.entries import expand, spec
from kfgen.model import runtime_activation
from kfgen.render.environment import environment

SCHEDULES = ("cuda", "c")
SHARED = "shared"  # templates of no family


def reads():
    """Returns {(object, attribute): folders of the templates that read it}."""
    env, found = environment(), {}
    for path in sorted(paths.TEMPLATES.rglob("*.j2")):
        folder = path.parent.name if path.parent.name in families.FAMILIES else SHARED
        for read in env.parse(path.read_text()).find_all(nodes.Getattr):
            if of := _object(read.node):
                found.setdefault((of, read.attr), set()).add(folder)
    return found


def _object(node):
    """Returns "k" for the kernel, renamed or not, "cuda" or "c" for its schedules, else None."""
    if isinstance(node, nodes.Name):
        return "k" if node.name == "k" else None
    if not isinstance(node, nodes.Getattr) or _object(node.node) != "k":
        return None
    return {"renamed": "k", "cuda": "cuda", "c": "c"}.get(node.attr)


def lines():
    """Returns {object: {attribute: line}} of interface.toml."""
    return tomllib.loads((paths.HERE / "render/interface.toml").read_text())


@functools.cache
def _objects():
    """Returns [(family, object, instance)], one of each class of kf's own kernels and schedules."""
    found = {}
    for op in spec.load().ops.values():
        for k in expand.kernels(op, ("f32",)):
            own = [k, runtime_activation.kernel(k)] if runtime_activation.has(k) else [k]
            for one in own:
                kind = k.family.name, type(one), type(one.cuda), one.runtime_activation, one.bwd
                found.setdefault(kind, one)
    return [
        (kind[0], of, k if of == "k" else getattr(k, of))
        for kind, k in found.items()
        for of in ("k", *SCHEDULES)
    ]


def _docstring(instance, attribute):
    """First sentence of the docstring of a property or method, on one line, or ""."""
    found = getattr(type(instance), attribute, None)
    found = getattr(found, "func", None) or getattr(found, "fget", None) or found
    text = found.__doc__ if callable(found) and found.__doc__ else ""
    return " ".join(text.split()).partition(". ")[0].removesuffix(".")


def described(of, attribute):
    """Returns {docstring: families} of an attribute."""
    found = {}
    for family, other, instance in _objects():
        if other == of and (text := _docstring(instance, attribute)):
            found.setdefault(text, {})[family] = True
    return {text: list(names) for text, names in found.items()}


def rows(found, given):
    """Returns ({object: [(attribute, folders, line)]}, problems). found: as reads(); given: as
    lines().
    """
    builtin = [family.name for family in families.FAMILIES.values() if not family.templates]
    made, problems = {of: [] for of in ("k", *SCHEDULES)}, []
    for (of, attribute), folders in sorted(found.items()):
        line, own = given[of].get(attribute), described(of, attribute)
        if not own and not line:
            problems.append(f"{of}: `{attribute}` is read by {sorted(folders)} and has no line")
        texts = [line] if line else []
        texts += [f"{', '.join(n)}: {t}" if len(own) > 1 or line else t for t, n in own.items()]
        read_in = ["all"] if set(builtin) <= folders else sorted(folders)
        made[of].append((attribute, read_in, "; ".join(texts)))
    problems += [
        f"{of}: `{attribute}` is listed, but no template reads it"
        for of, table in given.items()
        for attribute in table
        if (of, attribute) not in found
    ]
    return made, problems


def page():
    """Returns the text of the page."""
    made, problems = rows(reads(), lines())
    if problems:
        raise ValueError("; ".join(problems))
    return environment().get_template("docs/interface.md.j2").render(rows=made)
