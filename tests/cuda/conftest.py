# SPDX-License-Identifier: Apache-2.0
"""One library of the launchers that the chosen tests call on a GPU, and turns: a test marked `alone` has the GPU for itself, one marked
`one_at_a_time` has no other one of its mark beside it."""

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
    """What a library has: those of its functions that tests are about; all, where one of the tests may call any, or where others of the folder run
    in processes of their own (support/level2): all of these have the same library."""
    called = [item for item in items if "libraries" in item.fixturenames]
    about = [item.callspec.params["f"] for item in called if "f" in item.fixturenames]
    about = {
        f["name"] for f in about if isinstance(f, dict)
    }  # else a test of no function, which is skipped: KF_FAMILIES has none for it
    any_of_them = getattr(config, "in_parts", False) or any(
        "f" not in item.fixturenames for item in called
    )
    return [f for f in numeric.CUDA[build] if any_of_them or f["name"] in about]


@pytest.fixture(scope="session")
def libraries(request):
    """name -> library, each built once; calls into CUDA's runtime are counted."""
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


def seen():
    """The GPUs that this process sees, in the order in which all processes lock them."""
    return sorted(set(os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")))


@contextlib.contextmanager
def turn(name, mode):
    """A lock for each GPU: tests on different ones do not wait for each other."""
    (BUILD / "cuda").mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        for gpu in seen():
            fcntl.flock(stack.enter_context(open(BUILD / "cuda" / f"{gpu}.{name}", "w")), mode)
        yield


@pytest.fixture(scope="session")
def gpu():
    helpers = gpus.build_helpers(BUILD / "cuda")
    with turn("alone.lock", fcntl.LOCK_SH):
        return gpus.Gpu(helpers)


@contextlib.contextmanager
def turn_of(test):
    alone, single = (test.get_closest_marker(m) for m in ("alone", "one_at_a_time"))
    with turn("alone.lock", fcntl.LOCK_EX if alone else fcntl.LOCK_SH):
        with turn("single.lock", fcntl.LOCK_EX) if single else contextlib.nullcontext():
            yield


@pytest.fixture(autouse=True)
def turns(request):
    with turn_of(request.node):
        yield
