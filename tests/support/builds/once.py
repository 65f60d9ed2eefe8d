# SPDX-License-Identifier: Apache-2.0
"""Shares the result of a slow fixture between test workers: the first worker makes it, the others
wait and read it."""

import pathlib
import pickle
import re
import shutil

import kflib


class Once:
    """once(name, make) returns the result of make(folder), which must be picklable.

    Files that `make` writes into `folder` stay readable for all workers. name: unique per fixture.
    After a failure the next caller tries again.
    """

    def __init__(self, folder):
        self.folder, self.known = pathlib.Path(folder), {}

    def __call__(self, name, make):
        if name not in self.known:
            place = self.folder / re.sub(r"\W+", "_", name)
            with kflib.locked(place):
                self.known[name] = self.made(place / "files", place / "result", make)
        return self.known[name]

    @staticmethod
    def made(files, result, make):
        if not result.exists():
            shutil.rmtree(files, ignore_errors=True)
            files.mkdir()
            found = pickle.dumps(make(files))
            result.with_suffix(".new").write_bytes(found)
            result.with_suffix(".new").replace(result)
        return pickle.loads(result.read_bytes())
