# SPDX-License-Identifier: Apache-2.0
"""Error texts: one per code, never longer than the buffer, one per thread, unchanged by success."""

import threading

import kflib
from refusals import CODES, FUNCTIONS, INVALID_SIZE, Call


def test_codes_have_texts(lib):
    texts = [lib.string(code) for code in CODES]
    assert (
        texts[0] == "success"
        and len(set(texts)) == len(CODES)
        and all(len(t) > 5 or t == "success" for t in texts)
    )
    assert lib.string(len(CODES)) == lib.string(-1) == "unknown result code"


def test_long_messages_are_cut(lib):
    """The longest names, pointers and numbers fit into the buffer."""
    f = max(kflib.on(lib.backend, FUNCTIONS), key=lambda f: len(f["cpu_name"]))
    Call(lib, f).set(**{f["sizes"][-1]: -(2**63)}).refuses(
        INVALID_SIZE, f["sizes"][-1], str(-(2**63))
    )


def test_success_leaves_the_detail_alone(lib):
    """A successful call writes no text."""
    functions = kflib.on(lib.backend, FUNCTIONS)
    f, other = functions[0], functions[-1]
    Call(lib, f).set(**{f["sizes"][0]: -7}).refuses(INVALID_SIZE, f["sizes"][0])
    before = lib.detail
    call = Call(lib, other)
    assert lib.call(other, call.values) == 0 and lib.detail == before and "-7" in before


def test_a_detail_per_thread(lib):
    f = kflib.on(lib.backend, FUNCTIONS)[0]
    size, reported = f["sizes"][0], {}
    barrier = threading.Barrier(4)

    def fail(value):
        call = Call(lib, f).set(**{size: value})
        barrier.wait()
        code = lib.call(f, call.values)
        barrier.wait()  # all calls have failed: each thread reads its own text
        reported[value] = code, lib.detail

    fail_all = [threading.Thread(target=fail, args=(-k,)) for k in range(1, 5)]
    for thread in fail_all:
        thread.start()
    for thread in fail_all:
        thread.join()
    for value, (code, detail) in reported.items():
        assert code == INVALID_SIZE and f"{size} is {value}, " in detail
    assert len(reported) == 4
