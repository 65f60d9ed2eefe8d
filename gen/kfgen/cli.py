# SPDX-License-Identifier: Apache-2.0
"""The command line: render, single, install, package, list, check, explain, source, docs."""

import argparse
import gc
import importlib.util
import json
import os
import pathlib
import sys

from kfgen.model import stamp


def _later(name):
    """Returns a module that is imported at its first use: `render --stamp` often needs none."""
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.find_spec(name)
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


families = _later("kfgen.families")
aliases = _later("kfgen.entries.aliases")
specs = _later("kfgen.entries.spec")
expand = _later("kfgen.entries.expand")
clashes = _later("kfgen.interfaces.clashes")
manifest = _later("kfgen.interfaces.manifest")
runtime = _later("kfgen.interfaces.runtime")
names = _later("kfgen.model.names")
docs = _later("kfgen.render.docs")
package = _later("kfgen.render.package")
single = _later("kfgen.render.single")
source = _later("kfgen.render.source")
explaining = _later("kfgen.render.explain")
rendering = _later("kfgen.render.render")


def build_parser():
    parser = argparse.ArgumentParser(
        prog="kfgen",
        description="Generates kf's headers, documentation and function lists from its spec files.",
    )
    commands = parser.add_subparsers(dest="command", required=True)

    def add(name, text, function):
        p = commands.add_parser(name, help=text, description=text)
        p.add_argument(
            "--spec",
            action="append",
            default=[],
            metavar="FILE",
            help="your spec file; may be repeated",
        )
        p.add_argument(
            "--family",
            action="append",
            default=[],
            metavar="DIR",
            help="a folder with your own family, for ops of your spec files; may be repeated",
        )
        p.set_defaults(function=function)
        return p

    _header_commands(add)
    _other_commands(add)
    return parser


def _header_commands(add):
    """Adds the commands that write headers."""
    p = add(
        "render",
        "write the headers; with --spec, only those of your spec files, beside an installed kf",
        render,
    )
    p.add_argument(
        "--out", required=True, metavar="DIR", help="the include directory to write into"
    )
    p.add_argument("--depfile", metavar="FILE", help="write a make dependency file")
    p.add_argument(
        "--stamp",
        metavar="FILE",
        help="do nothing if inputs and outputs are unchanged since FILE was written",
    )
    p.add_argument(
        "--list",
        action="store_true",
        help="write nothing; print the files that would be written, then the input files",
    )
    p.add_argument(
        "--one-file",
        action="store_true",
        help="with --spec: write DIR/<name>.h and DIR/<name>.cuh instead of a tree",
    )
    choose(p)
    p = add(
        "single",
        "write kf_single.h and kf_single.cuh: kf and, with --spec, your ops in one file each",
        write_single,
    )
    p.add_argument("--out", required=True, metavar="DIR")
    choose(p)
    p = add(
        "install",
        "install headers, pkg-config and CMake files, listed in PREFIX/share/kf/installed.txt",
        install,
    )
    p.add_argument("--prefix", required=True, metavar="DIR")
    p.add_argument(
        "--destdir", default="", metavar="DIR", help="staging directory, prepended to the prefix"
    )
    choose(p)
    p = add("package", "write kf.pc and the CMake package", write_package)
    p.add_argument("--out", required=True, metavar="DIR")
    for name in ("prefix", "includedir", "datadir"):
        p.add_argument(
            f"--{name}",
            default=package.DEFAULTS[name],
            metavar="DIR",
            help="installation directory, default: %(default)s",
        )


def _other_commands(add):
    """Adds the commands that list, check and document functions."""
    p = add("list", "list the public functions", list_functions)
    p.add_argument("--json", action="store_true", help="print the manifest as JSON")
    p.add_argument(
        "--aliases",
        action="store_true",
        help="print the aliases instead, with arguments and functions",
    )
    choose(p, lists_ops=True)
    add(
        "check",
        "check every entry: names, values, edges, and derivatives against its reference",
        check,
    )
    p = add(
        "explain",
        "show a function's contract, spec entries, expressions, gradients, templates and files",
        explain,
    )
    p.add_argument(
        "name",
        metavar="FUNCTION",
        help="kf_add_relu_f16, kf_cpu_bias_gelu_bwd_f32, ...; add_relu is kf_add_relu_f32",
    )
    p = add("source", "print a function's kernels as one self-contained text", print_source)
    p.add_argument("name", metavar="FUNCTION")
    p = add(
        "runtime",
        "write the functions on tensors (kf/runtime.h) of selected ops: one header, or one per op",
        write_runtime,
    )
    p.add_argument(
        "-o", "--out", required=True, metavar="FILE", help="the header; with --each, a directory"
    )
    p.add_argument(
        "--each",
        action="store_true",
        help="write OUT/kf/runtime/<op>.h per op, and OUT/kf/runtime/all.h",
    )
    p.add_argument(
        "--list", action="store_true", help="with --each: write nothing; print the files"
    )
    p.add_argument("--depfile", metavar="FILE", help="with --each: write a make dependency file")
    choose(p)
    p = add(
        "docs",
        "write the reference: a page per family, one of activations, and an index",
        write_docs,
    )
    p.add_argument("--out", default="docs/reference", metavar="DIR", help="default: %(default)s")
    choose(p)


def choose(p, lists_ops=False):
    """Adds the options that select functions.

    Args:
        lists_ops: True if --ops without names lists all ops.
    """
    for what in ("ops", "activations", "dtypes"):
        optional = {"nargs": "?", "const": []} if lists_ops and what == "ops" else {}
        p.add_argument(
            f"--{what}",
            **optional,
            type=lambda t: [w for w in t.split(",") if w],
            metavar="A,B,...",
            help=f"only these {what}"
            + ("" if what == "dtypes" else "; those of --spec are always included")
            + ("; without names: list the ops" if optional else ""),
        )


def selected(args):
    selection = rendering.Selection(
        specs.load(args.spec),
        *(getattr(args, what, None) for what in ("ops", "activations", "dtypes")),
    )
    found = [
        f"{name}: made from {first} and from {second}; rename one of them"
        for name, first, second in clashes.find(selection, user_of(args))
    ]
    if found:
        raise ValueError("\n".join(found[:10]))
    if not selection.all_kernels():
        options = [
            f"--{what} {','.join(words)}"
            for what in ("ops", "activations", "dtypes")
            if (words := getattr(args, what, None))
        ]
        raise ValueError(f"no function matches {', '.join(options)}")
    return selection


def user_of(args):
    return specs.user_stem(args.spec) if args.spec else None


def one_a_line(found):
    """Writes JSON with one function per line; without indentation, json's C encoder is five times
    faster.
    """
    lists = {
        k: "[\n" + ",\n".join(map(json.dumps, v)) + "\n]" if isinstance(v, list) else json.dumps(v)
        for k, v in found.items()
    }
    return "{" + ",\n".join(f"{json.dumps(k)}: {text}" for k, text in lists.items()) + "}"


def list_functions(args):
    if args.ops == []:
        ops = specs.load(args.spec).ops.values()
        print(*(f"{names.stem(op.pattern)}: {op.brief}" for op in ops), sep="\n")
        return 0
    if not args.aliases and not args.json:
        print(*(f"{signature};" for signature in manifest.signatures(selected(args))), sep="\n")
        return 0
    found = manifest.build(selected(args), user_of(args))
    if args.aliases:
        for a in found["aliases"]:
            words = ", ".join(
                x["name"] if x["name"] == x["of"] else f"{x['name']} = {x['of']}"
                for x in a["arguments"]
            )
            defaults = "".join(
                f", {name} = {value}"
                for name, value in a["defaults"].items()
                if name not in [x["of"] for x in a["arguments"]]
            )
            print(f"{a['name']}({words}{defaults}): {names.fill(a['op'], a['activation'])}")
    else:
        print(one_a_line(found))
    return 0


def render(args):
    if args.stamp and (count := stamp.fresh(args)):
        print(f"kfgen: {count} files are up to date")
        return 0
    user = user_of(args)
    if args.one_file and not user:
        raise ValueError("--one-file needs --spec; for kf's own headers use `kfgen single`")
    selection = selected(args)
    launchers = [
        (k, a)
        for k in selection.all_kernels()
        for a in k.launchers
        if not user or not (k.op.builtin and a.act.builtin)
    ]
    if not launchers:
        raise ValueError(
            f"no function of {', '.join(args.spec)} matches the selection of ops, activations and "
            "dtypes"
        )
    renderer = rendering.Renderer(selection, user)
    files = renderer.render()
    if args.one_file:
        files = single.own(files, user)
    if args.list:
        print(*sorted(files), *renderer.dependencies(), sep="\n")
        return 0
    changed = rendering.write_all(files, args.out, renderer.dependencies(), args.depfile)
    if args.stamp:
        stamp.write(
            args,
            [pathlib.Path(args.out) / path for path in files]
            + ([pathlib.Path(args.depfile)] if args.depfile else []),
        )
    print(f"kfgen: {len(files)} files, {changed} changed, {expand.counted(launchers)}")
    return 0


def write_single(args):
    files = single.everything(selected(args), user_of(args))
    changed = rendering.write_all(files, args.out, [])
    print(f"kfgen: {', '.join(sorted(files))}: {changed} changed")
    return 0


def install(args):
    if args.spec:
        raise ValueError(
            "install writes kf's own headers only; for yours use "
            "`kfgen render --spec FILE --out PREFIX/include`"
        )
    selection = selected(args)
    on_tensors = runtime.each(manifest.build(selection))
    print(f"kfgen: {package.install(selection, on_tensors, args.prefix, args.destdir)}")
    return 0


def write_package(args):
    rendering.write_all(package.flat(args.prefix, args.includedir, args.datadir), args.out, [])
    return 0


def check(args):
    try:
        from kfgen import check as checking
        from kfgen import notes
    except ImportError as e:
        raise ValueError(f"check needs {e.name}: pip install numpy scipy") from None
    selection = selected(args)
    failures, counts = checking.run(selection)
    own = [op for op in selection.ops if op.builtin]
    failures += aliases.problems(manifest.forwards(selection, aliases.targets(own)), own)
    for failure in failures:
        print(f"kfgen: {failure}", file=sys.stderr)
    for note in notes.run(selection) if not failures else ():
        print(f"kfgen: note: {note}")
    for count in counts:
        print(f"kfgen: {count}")
    return 1 if failures else 0


def explain(args):
    print(explaining.explain(selected(args), args.name, manifest.function, user_of(args)), end="")
    return 0


def print_source(args):
    print(source.source(selected(args), args.name), end="")
    return 0


def write_runtime(args):
    for name in ("list", "depfile"):
        if getattr(args, name) and not args.each:
            raise ValueError(f"--{name} needs --each")
    out, selection = pathlib.Path(args.out), selected(args)
    made = manifest.build(selection, user_of(args))
    if not args.each:
        rendering.write(out, runtime.render(made, out.name))
        return 0
    files = runtime.each(made)
    if args.list:
        print(*sorted(files), sep="\n")
        return 0
    changed = rendering.write_all(files, out, runtime.inputs(selection), args.depfile)
    print(f"kfgen: {len(files)} files, {changed} changed")
    return 0


def write_docs(args):
    print(f"kfgen: {', '.join(map(str, docs.write(selected(args), args.out)))}")
    return 0


def main(argv=None):
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["help"]:
        argv = [*argv[1:], "--help"]
    args, collects = build_parser().parse_args(argv), gc.isenabled()
    gc.disable()  # nearly all objects live to the end; collection took 10 to 33 % of the time
    try:
        for folder in args.family:
            families.load(folder)
        args.spec = specs.with_families(args.spec, args.family)
        code = args.function(args)
        sys.stdout.flush()
        return code
    except (specs.SpecError, ValueError) as e:
        print(f"kfgen: error: {e}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader, such as head, has closed the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as e:
        hint = (
            "; choose a directory of your own, such as $HOME/.local"
            if isinstance(e, PermissionError)
            else ""
        )
        print(f"kfgen: error: {e.filename}: {e.strerror}{hint}", file=sys.stderr)
        return 1
    finally:
        if collects:
            gc.enable()
