# SPDX-License-Identifier: Apache-2.0
"""Values of the reference page of kf.nn: its modules with their docstrings.

The sources are parsed, not imported, since kfgen has no PyTorch.
"""

import ast
import inspect
import re
from dataclasses import dataclass

from kfgen import paths

FILES = ("layers", "multihead", "norms", "losses", "fused", "routing")


@dataclass
class Module:
    name: str
    arguments: str  # "" where they are PyTorch's
    replaces: str  # name in torch.nn, or ""
    text: str


def tree(name):
    return ast.parse((paths.frontend() / f"{name}.py").read_text())


def constant(parsed, name):
    """Returns the value of an assignment at the top of a file."""
    [value] = [
        node.value
        for node in parsed.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    ]
    return ast.literal_eval(value)


def coded(text):
    """Marks dotted names as code."""
    return re.sub(r"\b(?:kf|torch)\.[\w.]*\w", r"`\g<0>`", text)


def prose(doc):
    """Returns a docstring as one line of Markdown; its arguments follow, one per line."""
    text, _, arguments = inspect.cleandoc(doc).partition("\nArgs:\n")
    lines = [" ".join(text.split())]
    for line in inspect.cleandoc(arguments).split("\n") if arguments else ():
        name, colon, _ = line.partition(": ")
        if line.startswith(" "):
            lines[-1] += f" {line.strip()}"
        elif name != "*args, **kwargs":  # documented by PyTorch
            lines.append(f"`{name}`{colon}{line[len(name) + len(colon) :]}")
    return "<br>".join(coded(line) if i == 0 else line for i, line in enumerate(lines))


def signature(function):
    """Returns the arguments of a method without self and annotations."""
    given = function.args
    for argument in (*given.args, *given.kwonlyargs, given.vararg, given.kwarg):
        if argument:
            argument.annotation = None
    given.args = given.args[1:]
    return ast.unparse(given)


def classes(parsed, known):
    """Yields the public modules of a file that are classes; known: {name: class} of all files."""
    known |= {node.name: node for node in parsed.body if isinstance(node, ast.ClassDef)}

    def line(node):
        """The class and its bases within the package."""
        bases = [known[b.id] for b in node.bases if isinstance(b, ast.Name) and b.id in known]
        return [node, *(found for base in bases for found in line(base))]

    for node in known.values():
        if node.name.startswith("_") or node not in parsed.body:
            continue
        inherited = line(node)
        made = [f for c in inherited for f in c.body if getattr(f, "name", "") == "__init__"]
        bases = [ast.unparse(b) for c in inherited[:1] for b in c.bases]
        replaced = next((b for b in bases if b == f"torch.nn.{node.name}"), "")
        yield Module(
            node.name, signature(made[0]) if made else "", replaced, prose(ast.get_docstring(node))
        )


def elementwise(parsed):
    """Yields the losses that `_elements` makes."""
    for node in parsed.body:
        if isinstance(node, ast.AnnAssign) and getattr(node.value, "func", None):
            name, op = (ast.literal_eval(a) for a in node.value.args[:2])
            text = constant(parsed, "DOC").format(name=name, op=op)
            yield Module(name, "", f"torch.nn.{name}", prose(text))


def activations(selection):
    """Yields a module per activation, named as kernel_fusion/_classes.py names it."""
    parsed = tree("../_classes")
    torch, own = constant(parsed, "TORCH"), constant(parsed, "OWN")
    for a in selection.activations:
        if a.name == "none":
            continue
        name = (torch | own).get(a.name) or "".join(w.capitalize() for w in a.name.split("_"))
        replaced = f"torch.nn.{name}" if a.name in torch else ""
        prefix = f"{a.name}_" if replaced else ""  # elu_alpha is ELU's alpha
        scalars = [f"{s.removeprefix(prefix)}={v:g}" for s, v in a.scalars.items()]
        approximate = ["approximate='none'"] if name == "GELU" else []
        yield Module(name, ", ".join(approximate + scalars), replaced, f"`kf.ops.{a.name}`")


def values(selection):
    """Returns the variables of templates/docs/nn.md.j2."""
    known, groups = {}, []
    for file in FILES:
        parsed = tree(file)
        found = [*classes(parsed, known), *elementwise(parsed)]
        groups.append((coded(inspect.cleandoc(ast.get_docstring(parsed))), found))
    return {
        "introduction": inspect.cleandoc(ast.get_docstring(tree("__init__"))).split("\n\n"),
        "groups": groups,
        "activations": list(activations(selection)),
    }
