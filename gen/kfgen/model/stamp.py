# SPDX-License-Identifier: Apache-2.0
"""Stamp of a rendering (`kfgen render --stamp FILE`): digests of its inputs and outputs. The next
rendering is skipped if both are unchanged. Contents count, not modification times.
"""

import hashlib
import importlib.metadata
import json
import pathlib
import sys

from kfgen import paths


def _digest(data):
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def key(args):
    """Digest of the inputs: generator, templates, spec files and options."""
    folders = (paths.HERE, paths.TEMPLATES, *map(pathlib.Path, args.family))
    files = [
        p for folder in folders for p in folder.rglob("*") if p.suffix in (".py", ".j2", ".toml")
    ]
    found = [
        (str(p), _digest(p.read_bytes()))
        for p in sorted(
            [*files, paths.INCLUDE / "kf/core/version.h", *map(pathlib.Path, args.spec)]
        )
    ]
    options = {name: value for name, value in sorted(vars(args).items()) if name != "function"}
    return _digest(
        repr((found, options, sys.version_info, importlib.metadata.version("jinja2"))).encode()
    )


def _state(path):
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]


def fresh(args):
    """Returns the number of files if the last rendering is still valid, else 0."""
    path = pathlib.Path(args.stamp)
    try:
        before = json.loads(path.read_text())
        if before["key"] != key(args):
            return 0
        touched = [
            p for p, (state, _) in before["files"].items() if _state(pathlib.Path(p)) != state
        ]
        if any(_digest(pathlib.Path(p).read_bytes()) != before["files"][p][1] for p in touched):
            return 0
    except (OSError, ValueError, KeyError, TypeError):  # no stamp, another format, a missing file
        return 0
    return len(before["files"])


def write(args, files):
    """Writes the stamp. files: paths of the rendered files."""
    found = {str(p): (_state(p), _digest(p.read_bytes())) for p in files}
    path = pathlib.Path(args.stamp)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"key": key(args), "files": found}))
