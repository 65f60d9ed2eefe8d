# SPDX-License-Identifier: Apache-2.0
"""Renders the model through the templates.

The same inputs give the same bytes. A file is written only if its text changes.
"""

import copy
import difflib
import hashlib
import os
import pathlib
import re

from kfgen import families
from kfgen.entries import expand
from kfgen.model import names
from kfgen.model.activation import ActCode
from kfgen.model.dtypes import DTYPES, ROUNDED
from kfgen.paths import HERE, ROOT, version
from kfgen.render import launchers, runtime_activation
from kfgen.render.environment import environment
from kfgen.render.layout import tidy

# Stand in the banner until the text is rendered.
DIGEST, ENTRIES, SOURCES = "-digest-here", "-entries-here", "-sources-here"
# Parts of an op's header. CUDA: one for each of nvcc's passes; C: what the launchers call.
PARTS = {"cuh": ("device", "host"), "h": ("kernels",)}


def parts(path):
    """Files of an op's header `path`."""
    stem, _, ext = path.rpartition(".")
    return [path, *(f"{stem}.{part}.{ext}" for part in PARTS[ext])]


def write(path, text):
    """Writes a file if its text changes, so that builds do not repeat work."""
    if path.exists() and path.read_text() == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two builds may write at the same time.
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text)
    temporary.replace(path)
    return True


FEW = 24  # names that an error lists


def unknown(option, word, known):
    """Error for a word that is not among the known ones: the most similar one, then all if few."""
    near = "".join(f"did you mean `{k}`? " for k in difflib.get_close_matches(word, known, n=1))
    if len(known) > FEW:
        return ValueError(f"{option}: there is no `{word}`; {near}`kfgen list --ops` shows all")
    return ValueError(f"{option}: there is no `{word}`; {near}expected some of: {', '.join(known)}")


def _unknown(spec, what, word, known, options):
    """Error for an unknown op, activation or dtype. A function's name is often given for an op."""
    for op in spec.ops.values() if what == "ops" else ():
        for act in op.activations:
            if op.has_act and names.fill(op.pattern, act.name) == word:
                stem = names.stem(op.pattern)
                return ValueError(
                    f"{_called(options, what)}: `{word}` is the op {stem} "
                    f"with activation {act.name}: "
                    f"{options['ops']}{stem} {options['activations']}{act.name}"
                )
    # Patterns are accepted too; listing them would repeat the stems.
    return unknown(_called(options, what), word, sorted(k for k in known if "{" not in k))


# Beginning of each option on the command line.
OPTIONS = {what: f"--{what} " for what in ("ops", "activations", "dtypes")}


def _called(options, what):
    return options[what].rstrip(" =")


class Selection:
    """Ops, activations and dtypes to render: all, or those that are named.

    An op is named by pattern or stem. A user's own entries are always selected.

    Args:
        options: beginnings of the three options, for error messages.
    """

    def __init__(self, spec, ops=None, activations=None, dtypes=None, options=OPTIONS):
        def choose(wanted, all_, what, key=lambda n: (n,), own=()):
            if not wanted:
                return list(all_)
            known = {k: n for n in all_ for k in key(n)}
            for w in wanted:
                if w not in known:
                    raise _unknown(spec, what, w, known, options)
            return [n for n in all_ if n in {known[w] for w in wanted} or n in own]

        def own(entries):
            return {name for name, entry in entries.items() if not entry.builtin}

        self.spec = spec
        chosen_ops = choose(ops, spec.ops, "ops", lambda p: (p, names.stem(p)), own(spec.ops))
        chosen_ops += [other.pattern for p in chosen_ops for other in spec.ops[p].made_of]
        self.ops = [spec.ops[p] for p in spec.ops if p in chosen_ops]
        acts = set(
            choose(activations, spec.activations, "activations", own=own(spec.activations))
        ) | {"none"}
        self.activations = [a for a in spec.activations.values() if a.name in acts]
        self.dtypes = choose(dtypes, DTYPES, "dtypes")
        for word in [
            d for d, stored in ROUNDED.items() if d in self.dtypes and stored not in self.dtypes
        ]:
            raise ValueError(
                f"{_called(options, 'dtypes')}: `{word}` has kernels of {ROUNDED[word]}: "
                f"{options['dtypes']}{ROUNDED[word]},{word}"
            )
        self._kernels = {}

    def kernels(self, op):
        """Kernels of an op, with the selected activations only."""
        if op.pattern not in self._kernels:
            # Without restriction the kernels are the same for every Selection.
            whole = self.spec.as_own(op) and all(a in self.activations for a in op.activations)
            made, key = self.spec.own.made if whole else {}, (op.pattern, *self.dtypes)
            if key not in made:
                made[key] = []
                for k in expand.kernels(op, self.dtypes):
                    k.acts = [a for a in k.acts if a in self.activations]
                    if k.acts:
                        made[key].append(k)
            self._kernels[op.pattern] = made[key]
        return self._kernels[op.pattern]

    def all_kernels(self):
        return [k for op in self.ops for k in self.kernels(op)]


def with_acts(kernel, acts):
    """Copies a kernel with other activations."""
    found = copy.copy(kernel)
    for cached in ("cuda", "c", "_renamed"):
        found.__dict__.pop(cached, None)
    found.acts = acts
    return found


TARGETS = (".cuh", ".h")


class Renderer:
    def __init__(self, selection, user=None, any_activation=True, targets=TARGETS):
        """Renders the headers of a selection.

        Args:
            user: stem of the user's spec file; only its entries are rendered, beside installed
                headers.
            any_activation: also the headers of kf/any.
            targets: endings of the headers; (".h",) renders C alone, in a third of the time.
        """
        self.selection, self.user, self.any_activation = selection, user, any_activation
        self.targets = targets
        self.env = environment()
        self.env.globals.update(version=version(), digest=DIGEST, entries=ENTRIES, sources=SOURCES)
        self.files = {}

    def add(self, path, template, **values):
        """Renders a file. Its digest follows from its own text, so other edits do not change it."""
        self.env.used = ()
        text = self.env.get_template(template).render(file=path, **values)
        used = [name for name in self.env.sources() if name != "macros.j2"]
        text = text.replace(ENTRIES, ", ".join(self.entries(values)), 1)
        text = tidy(text.replace(SOURCES, ", ".join(used), 1))
        digest = hashlib.sha256(text.encode()).hexdigest()
        self.files[path] = text.replace(DIGEST, digest[: len(DIGEST)], 1)

    def entries(self, values):
        """Spec files of a header: of its kernels, else of its activations, else of all entries."""
        kernels, codes = values.get("kernels"), values.get("activations")
        if kernels:
            found = [entry for k in kernels for entry in (k.op, *(k.acts if k.has_act else ()))]
        elif isinstance(codes, list):
            found = [code.act for code in codes]
        else:
            found = [*self.selection.activations, *self.selection.ops]
        files = [e.file if e.builtin else pathlib.PurePath(e.file).name for e in found]
        return list(dict.fromkeys(files))

    def guard(self, path):
        return re.sub(r"[^A-Z0-9]", "_", path.upper())

    def header(self, path, template, **values):
        self.add(path, template, guard=self.guard(path), **values)

    def render(self):
        """Returns {path: text}.

        For a user's spec these are the user's entries, and kf's ops with the user's activations.
        """
        s, user = self.selection, self.user
        prefix = names.folder(user)
        activations = f"{prefix}/activations"
        codes = [ActCode(a) for a in s.activations if not (user and a.builtin)]
        for ext in self.targets:
            self.header(
                activations + ext,
                f"op/activations{ext}.j2",
                activations=codes,
                includes=["kf/ops/activations" + ext] if user else [],
            )
        stems = {ext: [] for ext in self.targets}
        for op in s.ops:
            # An installed op gets only launchers of the user's activations.
            extends = bool(user) and op.builtin
            kernels = (
                [with_acts(k, [a for a in k.acts if not a.builtin]) for k in s.kernels(op)]
                if extends
                else s.kernels(op)
            )
            if kernels := [k for k in kernels if k.acts]:
                self.op(op, kernels, extends, stems)
        if self.any_activation:
            runtime_activation.activations(self, [ActCode(a) for a in s.activations])
        umbrella = f"kf/{user}" if user else "kf/kf"
        for ext in self.targets:
            self.header(
                umbrella + ext,
                "umbrella.j2",
                activations=activations + ext,
                headers=[f"{prefix}/{x}{ext}" for x in stems[ext]],
                cuda=ext == ".cuh",
                user=user,
            )
        if ".cuh" in self.targets:
            launchers.render(self)
        return self.files

    def op(self, op, kernels, extends, stems):
        """Renders the headers of an op and adds its stem to those of each backend."""
        user, stem = self.user, names.stem(op.pattern)
        prefix = names.folder(user)
        device, host = ([k for k in kernels if word in k.backends] for word in ("cuda", "c"))
        for ext, own in ((".cuh", device), (".h", host)):
            if not own or ext not in self.targets:
                continue
            stems[ext].append(stem)
            self.header(
                f"{prefix}/{stem}{ext}",
                f"op/op{ext}.j2",
                op=op,
                kernels=own,
                stem=stem,
                extends=extends,
                parts=f"{prefix}/{stem}",
                needs=self.needs(own, ext),
                activations_header=f"{prefix}/activations{ext}",
                user=user,
                launchers_declared=launchers.declared(user),
                launchers_header=f"kf/{names.launchers(user)}.h",
            )
        for part in PARTS["cuh"] if device and ".cuh" in self.targets else ():
            self.add(
                f"{prefix}/{stem}.{part}.cuh",
                f"op/{part}.cuh.j2",
                kernels=device,
                extends=extends,
                device=part == "device",
            )
        self.add(
            f"{prefix}/{stem}.kernels.h",
            f"{kernels[0].family.name}/kernel.h.j2",
            kernels=host,
            extends=extends,
        )
        if self.any_activation:
            runtime_activation.headers(self, op, self.selection.kernels(op), extends)

    def needs(self, kernels, ext):
        """Headers that an op's header includes: those of other ops, and core headers."""
        found = [
            f"{names.folder(None if of.builtin else self.user)}/{names.stem(of.pattern)}{ext}"
            for of in kernels[0].needs
        ]
        schedules = [k.renamed.cuda if ext == ".cuh" else k.renamed.c for k in kernels]
        return found + sorted({core + ext for schedule in schedules for core in schedule.core})

    def dependencies(self):
        return dependencies(self.selection, self.env.loader.read)


def dependencies(selection, templates):
    """Returns the files that the output depends on: these templates, spec files and Python."""
    python = sorted(p for folder in (HERE, *families.OWN) for p in folder.rglob("*.py"))
    version = ROOT / "include/kf/core/version.h"
    return sorted({*templates, *selection.spec.files, *python, version})


def write_all(files, out, dependencies, depfile=None):
    """Writes the files below `out` and returns how many changed."""
    changed = sum(write(pathlib.Path(out) / path, text) for path, text in sorted(files.items()))
    if depfile:
        first = sorted(files)[0]
        lines = [
            f"{pathlib.Path(out) / first}: "
            + " ".join(str(d).replace(" ", "\\ ") for d in dependencies)
        ]
        write(pathlib.Path(depfile), "\n".join(lines) + "\n")
    return changed
