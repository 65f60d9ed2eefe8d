# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the GPU tests: one library of the launchers that the selected tests call, and locks.
A test marked `alone` has the GPU for itself; two tests marked `one_at_a_time` never run together.
"""

import contextlib
import fcntl
import os

import counting
import gpu as gpus
import kflib
import numeric
import pytest
from conftest import BUILD


def functions(config, items, build):
    """Functions of a library: those that the selected tests are about. All, if a test may call any,
    or if parts of the folder run in other processes (support/level2), which must share one library.
    """
    called = [item for item in items if "libraries" in item.fixturenames]
    about = [item.callspec.params["f"] for item in called if "f" in item.fixturenames]
    # Not a dict: a skipped test without functions, because KF_FAMILIES excludes them.
    about = {f["name"] for f in about if isinstance(f, dict)}
    any_of_them = getattr(config, "in_parts", False) or any(
        "f" not in item.fixturenames for item in called
    )
    return [f for f in numeric.CUDA[build] if any_of_them or f["name"] in about]


@pytest.fixture(scope="session")
def libraries(request):
    """Returns a function from name to library, built once, in which CUDA runtime calls are
    counted."""
    built = {}

    def get(name):
        if name not in built:
            built[name] = kflib.build(
                "cuda",
                functions(request.config, request.session.items, name),
                BUILD / "cuda",
                numeric.BUILDS["cuda"][name],
                extra=counting.source(),
                link=counting.LINK,
            )
        return built[name]

    return get


def visible_gpus():
    """The GPUs that this process sees, sorted, so that all processes lock them in the same
    order."""
    return sorted(set(os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")))


@contextlib.contextmanager
def gpu_lock(name, mode):
    """Holds a lock per GPU: tests on different GPUs do not wait for each other."""
    (BUILD / "cuda").mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        for gpu in visible_gpus():
            fcntl.flock(stack.enter_context(open(BUILD / "cuda" / f"{gpu}.{name}", "w")), mode)
        yield


@pytest.fixture(scope="session")
def gpu():
    helpers = gpus.build_helpers(BUILD / "cuda")
    with gpu_lock("alone.lock", fcntl.LOCK_SH):
        return gpus.Gpu(helpers)


@contextlib.contextmanager
def locks_of(test):
    alone, single = (test.get_closest_marker(m) for m in ("alone", "one_at_a_time"))
    with gpu_lock("alone.lock", fcntl.LOCK_EX if alone else fcntl.LOCK_SH):
        with gpu_lock("single.lock", fcntl.LOCK_EX) if single else contextlib.nullcontext():
            yield


@pytest.fixture(autouse=True)
def gpu_locks(request):
    with locks_of(request.node):
        yield
