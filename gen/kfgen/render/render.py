# SPDX-License-Identifier: Apache-2.0
"""Renders the model through the templates. Same inputs give the same bytes; a file is touched only when its text changes."""

import copy
import difflib
import hashlib
import os
import pathlib
import re

import jinja2

from kfgen import families
from kfgen.entries import expand
from kfgen.model import names
from kfgen.model.activation import ActCode
from kfgen.model.dtypes import DTYPES, ROUNDED
from kfgen.paths import HERE, ROOT, TEMPLATES, called, version
from kfgen.render import launchers, runtime_activation

DIGEST = "-digest-here"  # stands in the banner until the text is there
SPECS = "-specs-here"  # the same, of the spec files


class RecordingLoader(jinja2.FileSystemLoader):
    """Remembers which templates were read, for the depfile."""

    def __init__(self, path, own):
        """own: {family: the folder of its templates}; those of kf's own families are in folders of `path`."""
        super().__init__(path)
        self.own = {family: jinja2.FileSystemLoader(folder) for family, folder in own.items()}
        self.read = set()

    def get_source(self, environment, template):
        family, _, rest = template.partition("/")
        source = (
            self.own[family].get_source(environment, rest)
            if family in self.own
            else super().get_source(environment, template)
        )
        self.read.add(pathlib.Path(source[1]))
        return source


class Compiled(jinja2.BytecodeCache):
    """Templates as they were compiled once in this process, by file and text: 0.4 s of 1.4 for a Renderer of one activation."""

    def __init__(self):
        self.codes = {}

    def load_bytecode(self, bucket):
        bucket.code = self.codes.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket):
        self.codes[bucket.key, bucket.checksum] = bucket.code


COMPILED = Compiled()


def environment():
    own = {family.name: family.templates for family in families.OWN.values()}
    return jinja2.Environment(
        loader=RecordingLoader(TEMPLATES, own),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
        bytecode_cache=COMPILED,
        line_statement_prefix="//%",
        line_comment_prefix="//#",
    )


def parts(path):
    """The files that are an op's header `path`."""
    stem, _, ext = path.rpartition(".")
    return [path, *(f"{stem}.{part}.{ext}" for part in PARTS[ext])]


def write(path, text):
    """Writes only what changed, so that a build does not redo what is the same."""
    if path.exists() and path.read_text() == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(
        f"{path.name}.{os.getpid()}.tmp"
    )  # two builds may write at the same time
    temporary.write_text(text)
    temporary.replace(path)
    return True


PARTS = {
    "cuh": ("device", "host"),
    "h": ("kernels",),
}  # of an op's header: for each of nvcc's passes; in C what the launchers call
LAUNCHER = ("KF_FN", "template <int kfi_as = ")  # how a line of one begins


def tidy(text, width=100):
    """Generated text as a person would leave it: no stray blanks, no line over `width` that can be broken at a comma.
    CUDA's launchers stay on one line each: nvcc hands every further line to the host's compiler with a line directive (half a percent)."""
    lines = []
    for line in text.split("\n"):
        line = line.rstrip(
            " \t"
        )  # a pattern for the whole text tries every indentation: a tenth of all time
        if "#pragma" in line and line.lstrip().startswith("#pragma"):
            line = line.lstrip()
        if not line and (not lines or not lines[-1] or lines[-1].endswith("{")):
            continue
        if len(line) <= width:
            lines.append(line)
            continue
        indent = line[: len(line) - len(line.lstrip())] + (
            "// " if line.lstrip().startswith("//") else "    "
        )
        while len(line) > width and not line.startswith(("#", *LAUNCHER)):
            least, find = len(indent) + 20, line.rfind
            cut = max(
                find(", ", least, width),
                find(" && ", least, width),
                find(" | ", least, width),
                find(") {", least, width),
                find("{ ", least, width),
                find(" : ", least, width),
            )
            if cut < 0 and line.lstrip().startswith("//"):
                cut = line.rfind(" ", len(indent) + 20, width)
            if cut < 0:
                break
            lines.append(line[: cut + 1].rstrip())
            line = indent + line[cut + 1 :].lstrip()
        lines.append(line)
    return "\n".join(lines)


def unknown(option, word, known):
    """What is said of a word that is none of the known ones."""
    near = "".join(f"; did you mean `{k}`?" for k in difflib.get_close_matches(word, known, n=1))
    return ValueError(f"{option}: `{word}` is not one of: {', '.join(known)}{near}")


def _unknown(spec, what, word, known, options):
    """The names of functions are often taken for ops."""
    for op in spec.ops.values() if what == "ops" else ():
        for act in op.activations:
            if op.has_act and names.fill(op.pattern, act.name) == word:
                stem = names.stem(op.pattern)
                return ValueError(
                    f"{_called(options, what)}: `{word}` is the op {stem} with activation {act.name}: "
                    f"{options['ops']}{stem} {options['activations']}{act.name}"
                )
    return unknown(
        _called(options, what), word, sorted(k for k in known if "{" not in k)
    )  # patterns are taken too, and say the same


OPTIONS = {
    what: f"--{what} " for what in ("ops", "activations", "dtypes")
}  # how a choice begins that is written down


def _called(options, what):
    return options[what].rstrip(" =")


class Selection:
    """What to render: all of it, or the chosen ops (by pattern or stem), activations and dtypes. A user's own entries are chosen always. options:
    what the three are called where they come from, for messages."""

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
                f"{_called(options, 'dtypes')}: `{word}` has kernels of {ROUNDED[word]}: {options['dtypes']}{ROUNDED[word]},{word}"
            )
        self._kernels = {}

    def kernels(self, op):
        """The op's kernels, their activations cut to the selection."""
        if op.pattern not in self._kernels:
            whole = self.spec.as_own(op) and all(
                a in self.activations for a in op.activations
            )  # the same for every Selection that has it
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
    """The kernel with these activations instead of its own."""
    found = copy.copy(kernel)
    for cached in ("cuda", "c", "_renamed"):
        found.__dict__.pop(cached, None)
    found.acts = acts
    return found


class Renderer:
    def __init__(self, selection, user=None, any_activation=True):
        """user: the stem of the user's own spec file, whose entries alone are rendered, beside installed headers. any_activation: with kf/any."""
        self.selection, self.user, self.any_activation = selection, user, any_activation
        self.env = environment()
        self.env.globals.update(version=version(), digest=DIGEST, specs=SPECS)
        self.files = {}

    def add(self, path, template, **values):
        specs = ", ".join(self.specs(values.get("kernels", ())))
        text = self.env.get_template(template).render(file=path, **values)
        text = tidy(text.replace(SPECS, specs, 1))
        # Of the file's own text: an edit elsewhere leaves the file as it is.
        self.files[path] = text.replace(
            DIGEST, hashlib.sha256(text.encode()).hexdigest()[: len(DIGEST)], 1
        )

    def specs(self, kernels):
        """The spec files that a header is made of: of its kernels' ops and activations, or, where it has no kernels, all that there are."""
        entries = [entry for k in kernels for entry in (k.op, *(k.acts if k.has_act else ()))]
        files = [e.file if e.builtin else pathlib.PurePath(e.file).name for e in entries]
        return list(dict.fromkeys(files)) or [called(p) for p in self.selection.spec.files]

    def guard(self, path):
        return re.sub(r"[^A-Z0-9]", "_", path.upper())

    def header(self, path, template, **values):
        self.add(path, template, guard=self.guard(path), **values)

    def render(self):
        """{path: text}. A user's files are the user's entries and what they are crossed with; the rest is installed."""
        s, user = self.selection, self.user
        prefix = names.folder(user)
        activations = f"{prefix}/activations"
        codes = [ActCode(a) for a in s.activations if not (user and a.builtin)]
        for ext, template in ((".cuh", "op/activations.cuh.j2"), (".h", "op/activations.h.j2")):
            self.header(
                activations + ext,
                template,
                activations=codes,
                includes=["kf/ops/activations" + ext] if user else [],
            )
        stems = {".cuh": [], ".h": []}
        for op in s.ops:
            extends = (
                bool(user) and op.builtin
            )  # an installed op with the user's activations: launchers alone
            kernels = (
                [with_acts(k, [a for a in k.acts if not a.builtin]) for k in s.kernels(op)]
                if extends
                else s.kernels(op)
            )
            kernels = [k for k in kernels if k.acts]
            if not kernels:
                continue
            stem = names.stem(op.pattern)
            device, host = ([k for k in kernels if word in k.backends] for word in ("cuda", "c"))
            for ext, template, own in (
                (".cuh", "op/op.cuh.j2", device),
                (".h", "op/op.h.j2", host),
            ):
                if not own:
                    continue
                stems[ext].append(stem)
                needs = [
                    f"{names.folder(None if of.builtin else user)}/{names.stem(of.pattern)}{ext}"
                    for of in own[0].needs
                ]
                needs += (
                    sorted({core + ext for k in own for core in k.renamed.cuda.core})
                    if ext == ".cuh"
                    else []
                )
                self.header(
                    f"{prefix}/{stem}{ext}",
                    template,
                    op=op,
                    kernels=own,
                    stem=stem,
                    extends=extends,
                    parts=f"{prefix}/{stem}",
                    needs=needs,
                    activations_header=activations + ext,
                    user=user,
                    launchers_declared=launchers.declared(user),
                    launchers_header=f"kf/{names.launchers(user)}.h",
                )
            for part in PARTS["cuh"] if device else ():
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
                runtime_activation.headers(self, op, s.kernels(op), extends)
        if self.any_activation:
            runtime_activation.activations(self, [ActCode(a) for a in s.activations])
        umbrella = f"kf/{user}" if user else "kf/kf"
        for ext in (".cuh", ".h"):
            self.header(
                umbrella + ext,
                "umbrella.j2",
                activations=activations + ext,
                headers=[f"{prefix}/{x}{ext}" for x in stems[ext]],
                cuda=ext == ".cuh",
                user=user,
            )
        launchers.render(self)
        return self.files

    def dependencies(self):
        python = sorted(p for folder in (HERE, *families.OWN) for p in folder.rglob("*.py"))
        return sorted(
            {
                *self.env.loader.read,
                *self.selection.spec.files,
                *python,
                ROOT / "include/kf/core/version.h",
            }
        )


def write_all(files, out, dependencies, depfile=None):
    """Writes the files below out; returns how many changed."""
    changed = sum(write(pathlib.Path(out) / path, text) for path, text in sorted(files.items()))
    if depfile:
        first = sorted(files)[0]
        lines = [
            f"{pathlib.Path(out) / first}: "
            + " ".join(str(d).replace(" ", "\\ ") for d in dependencies)
        ]
        write(pathlib.Path(depfile), "\n".join(lines) + "\n")
    return changed
