# SPDX-License-Identifier: Apache-2.0
"""What a fixture makes once a run, whichever of the workers asks first: the others wait for it and take what it made."""

import pathlib
import pickle
import re
import shutil

import kflib


class Once:
    """once(name, make): what make(folder) returned, which can be pickled; the files that it left in `folder` lie there for all to read.
    name: a fixture's own, unlike that of any other. What fails is tried again by who asks next."""

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
