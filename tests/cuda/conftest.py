# SPDX-License-Identifier: Apache-2.0
"""One library of the launchers that the chosen tests call on a GPU, and turns: a test marked `alone` has the GPU for itself, one marked
`one_at_a_time` has no other one of its mark beside it."""

import contextlib
import fcntl

import counting
import gpu as gpus
import kflib
import numeric
import pytest
from conftest import BUILD


def functions(items, build):
    """What a library has: those of its functions that tests are about; all, where one of the tests may call any."""
    called = [item for item in items if "libraries" in item.fixturenames]
    about = [item.callspec.params["f"] for item in called if "f" in item.fixturenames]
    about = {f["name"] for f in about if isinstance(f, dict)}  # else a test of no function, which is skipped: KF_FAMILIES has none for it
    any_of_them = any("f" not in item.fixturenames for item in called)
    return [f for f in numeric.CUDA[build] if any_of_them or f["name"] in about]


@pytest.fixture(scope="session")
def libraries(request):
    """name -> library, each built once; calls into CUDA's runtime are counted."""
    built = {}

    def get(name):
        if name not in built:
            built[name] = kflib.build("cuda", functions(request.session.items, name), BUILD / "cuda", numeric.BUILDS["cuda"][name],
                                      extra=counting.source(), link=counting.LINK)
        return built[name]
    return get


@contextlib.contextmanager
def turn(name, mode):
    (BUILD / "cuda").mkdir(parents=True, exist_ok=True)
    with open(BUILD / "cuda" / name, "w") as lock:
        fcntl.flock(lock, mode)
        yield


@pytest.fixture(scope="session")
def gpu():
    helpers = gpus.build_helpers(BUILD / "cuda")
    with turn("alone.lock", fcntl.LOCK_SH):
        return gpus.Gpu(helpers)


@pytest.fixture(autouse=True)
def turns(request):
    alone, single = (request.node.get_closest_marker(m) for m in ("alone", "one_at_a_time"))
    with turn("alone.lock", fcntl.LOCK_EX if alone else fcntl.LOCK_SH):
        with turn("single.lock", fcntl.LOCK_EX) if single else contextlib.nullcontext():
            yield
