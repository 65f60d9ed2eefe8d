# SPDX-License-Identifier: Apache-2.0
"""Tests support/builds/once.py: several workers that request the same product get one that is built
once."""

import multiprocessing

import once
import pytest


def asks(folder, barrier, found):
    """Requests the product, as one of the workers."""

    def make(files):
        with open(folder / "calls", "a") as calls:
            calls.write("made\n")
        (files / "product").write_text("whole")
        return files / "product"

    barrier.wait()
    found.put(once.Once(folder)("the product", make).read_text())


def test_workers_share_it(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, found = context.Barrier(4), context.Queue()
    workers = [context.Process(target=asks, args=(tmp_path, barrier, found)) for _ in range(4)]
    for w in workers:
        w.start()
    assert [found.get(timeout=60) for _ in workers] == ["whole"] * 4
    for w in workers:
        w.join()
    assert (tmp_path / "calls").read_text() == "made\n"


def test_what_fails_is_tried_again(tmp_path):
    def fails(files):
        (files / "half").write_text("")
        raise ValueError("no")

    with pytest.raises(ValueError):
        once.Once(tmp_path)("it", fails)
    assert once.Once(tmp_path)("it", lambda files: [p.name for p in files.iterdir()]) == []


def test_a_worker_asks_once(tmp_path):
    own = once.Once(tmp_path)
    first = own("it", lambda files: ["one"])
    assert own("it", lambda files: ["another"]) is first
    assert own("other", lambda files: ["other"]) == ["other"]
