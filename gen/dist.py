# SPDX-License-Identifier: Apache-2.0
"""Writes the release: kf-<version>.tar.gz, which needs neither Python nor a build, and the single
files.

The archive holds the repository and the generated files: headers in include/, pkg-config and CMake
files in share/, and single/. It can be used as an installation prefix. The same
commit gives the same bytes.
"""

import gzip
import hashlib
import io
import os
import pathlib
import subprocess
import sys
import tarfile

sys.dont_write_bytecode = True
from kfgen import paths  # noqa: E402
from kfgen.entries import spec as specs  # noqa: E402
from kfgen.interfaces import manifest, runtime  # noqa: E402
from kfgen.render import package, single  # noqa: E402
from kfgen.render.render import Renderer, Selection  # noqa: E402


def git(*arguments):
    try:
        done = subprocess.run(["git", *arguments], cwd=paths.ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        raise SystemExit("kf: git is missing: apt install git") from None
    if done.returncode:
        raise SystemExit(f"kf: a release needs a git checkout; git says: {done.stderr.strip()}")
    return done.stdout


def tracked():
    """Returns {path: (text, mode)} of the repository's files."""
    found = {}
    for line in git("ls-files", "-s", "-z").split("\0"):
        if line:
            mode, path = line.split(" ", 1)[0], line.split("\t", 1)[1]
            found[path] = (paths.ROOT / path).read_bytes(), 0o755 if mode == "100755" else 0o644
    return found


def generated(selection):
    """Returns {path: text} of the generated files."""
    rendered = Renderer(selection).render()
    on_tensors = runtime.each(manifest.build(selection))
    found = package.tree(selection, on_tensors, rendered=rendered)
    found |= {
        f"single/{name}": text
        for name, text in single.everything(selection, rendered=rendered).items()
    }
    return found


def archive(members, top, when):
    """Returns the bytes of a .tar.gz, which depend on the arguments only."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path, (data, mode) in sorted(members.items()):
            info = tarfile.TarInfo(f"{top}/{path}")
            info.size, info.mode, info.mtime = len(data), mode, when
            tar.addfile(info, io.BytesIO(data))
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=packed, mode="wb", compresslevel=9, mtime=when) as file:
        file.write(plain.getvalue())
    return packed.getvalue()


def main(out):
    members = tracked()
    changed = git("status", "--porcelain", "--untracked-files=no").splitlines()
    if changed:
        text = f"{len(changed)} files differ from the commit and are archived as they are"
        print(f"kf: {text}: {changed[0][3:]}, ...", file=sys.stderr)
    made = generated(Selection(specs.load()))
    clash = sorted(
        path for path in set(members) & set(made) if members[path][0] != made[path].encode()
    )
    if clash:
        raise SystemExit(f"kf: generated files are in git: {', '.join(clash)}")
    members = {path: (text.encode(), 0o644) for path, text in made.items()} | members
    when = int(os.environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct"))
    name = f"kf-{paths.version()}"
    files = {f"{name}.tar.gz": archive(members, name, when)}
    files |= {
        pathlib.PurePath(path).name: text.encode()
        for path, text in made.items()
        if path.startswith("single/")
    }
    out.mkdir(parents=True, exist_ok=True)
    for file, data in files.items():
        (out / file).write_bytes(data)
        print(f"{hashlib.sha256(data).hexdigest()}  {out / file}")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
