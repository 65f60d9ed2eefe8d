# SPDX-License-Identifier: Apache-2.0
"""Progress of compilations on standard error: tqdm's bar if it is installed, else plain lines, and
what a first call compiles."""

import contextlib
import importlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any

EVERY = 10.0  # seconds between two lines where none can be rewritten


class Lines:
    """A line that is rewritten on a terminal; elsewhere a new one every ten seconds.

    Args:
        shown: False writes nothing.
    """

    def __init__(self, what: str, total: int, shown: bool):
        self.what, self.total, self.shown, self.done = what, total, shown, 0
        self.rewrites, self.begin = sys.stderr.isatty(), time.monotonic()
        self.last = self.begin

    def __enter__(self) -> "Lines":
        return self

    def advance(self) -> None:
        self.done += 1
        if self.shown and (self.rewrites or time.monotonic() - self.last > EVERY):
            self._write("\r" if self.rewrites else "", "" if self.rewrites else "\n")

    def _write(self, before: str, after: str) -> None:
        self.last = time.monotonic()
        took = f"{self.last - self.begin:.0f} s"
        line = f"{self.what}: {self.done} of {self.total} compiled, {took}"
        print(f"{before}{line}", end=after, file=sys.stderr, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        if self.shown and kind is None:
            self._write("\r" if self.rewrites else "", "\n")


class Bar:
    """tqdm's bar with the interface of Lines."""

    def __init__(self, make: Any, what: str, total: int):
        self.bar = make(total=total, desc=what, file=sys.stderr)

    def __enter__(self) -> "Bar":
        return self

    def advance(self) -> None:
        self.bar.update()

    def __exit__(self, *_: object) -> None:
        self.bar.close()


def bar(what: str, total: int, shown: bool | None) -> Lines | Bar:
    """Makes a progress bar.

    Args:
        shown: None shows it if standard error is a terminal and something is to be done.
    """
    shows = total > 0 and (sys.stderr.isatty() if shown is None else shown)
    try:
        tqdm = importlib.import_module("tqdm").tqdm
    except ImportError:
        return Lines(what, total, shows)
    return Bar(tqdm, what, total) if shows else Lines(what, total, False)


PATIENCE = 1.0  # seconds of a compilation after which a message says what is compiled


def _is_told() -> bool:
    """True on a terminal; KF_PROGRESS decides elsewhere, and may be 0 there."""
    own = os.environ.get("KF_PROGRESS", "")
    return own != "0" if own else sys.stderr.isatty()


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    """Writes a line if the compilation inside takes longer than PATIENCE.

    Args:
        what: the function, and what its first call compiles.
    """
    if not _is_told():
        yield
        return
    text = f"{what} is compiled at the first call; later calls and processes load it\n"
    timer = threading.Timer(PATIENCE, lambda: (sys.stderr.write(text), sys.stderr.flush()))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
