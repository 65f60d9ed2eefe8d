# SPDX-License-Identifier: Apache-2.0
"""The command line: render, list, check, explain, source."""

import argparse
import json
import sys

from kfgen import manifest
from kfgen import spec as specs
from kfgen.render import Renderer, Selection, write_all


def build_parser():
    parser = argparse.ArgumentParser(prog="kfgen", description="Expands kf's specification into headers, documentation and lists.")
    commands = parser.add_subparsers(dest="command", required=True)

    def add(name, text, function):
        p = commands.add_parser(name, help=text, description=text)
        p.add_argument("--spec", action="append", default=[], metavar="FILE", help="a spec file of your own; may be repeated")
        p.set_defaults(function=function)
        return p

    p = add("render", "write the headers", render)
    p.add_argument("--out", required=True, metavar="DIR", help="the include directory to write into")
    p.add_argument("--depfile", metavar="FILE", help="write a make dependency file")
    choose(p)
    p = add("list", "list every public function", list_functions)
    p.add_argument("--json", action="store_true", help="the whole manifest")
    choose(p)
    return parser


def choose(p):
    for what in ("ops", "activations", "dtypes"):
        p.add_argument(f"--{what}", type=lambda t: [w for w in t.split(",") if w], metavar="A,B,...", help=f"only these {what}")


def selected(args):
    selection = Selection(specs.load(args.spec), args.ops, args.activations, args.dtypes)
    for name, first, second in manifest.clashes(selection):
        raise ValueError(f"{name}: composed both from op `{first}` and from op `{second}`; rename one of them")
    return selection


def list_functions(args):
    found = manifest.build(selected(args))
    if args.json:
        json.dump(found, sys.stdout, indent=1)
        print()
    else:
        for f in found["functions"]:
            print(f["signature"] + ";")
    return 0


def render(args):
    selection = selected(args)
    renderer = Renderer(selection)
    files = renderer.render()
    changed = write_all(files, args.out, renderer.dependencies(), args.depfile)
    print(f"kfgen: {len(files)} files, {changed} changed, {sum(len(k.launchers) for k in selection.all_kernels())} functions per backend")
    return 0


def main(argv=None):
    args = build_parser().parse_args(argv)
    try:
        return args.function(args)
    except (specs.SpecError, ValueError) as e:
        print(f"kfgen: error: {e}", file=sys.stderr)
        return 1
