# SPDX-License-Identifier: Apache-2.0
"""Lengths, blocks and positions out of range, and shapes that do not fit: frontends refuse them on
the CPU by an error that names op, argument, value and bound, before anything is written."""

import frontend
import numpy as np
import pytest

TABLE = np.array([[4, 0, 6], [1, 5, 2]], np.int32)
LENGTHS = np.array([9, 5], np.int32)
ANGLES = {word: np.ones((14, 3), np.float32) for word in ("cosine", "sine")}


def changed(array, at, value):
    found = array.copy()
    found[at] = value
    return found


def given(stores, **changes):
    """Arguments of a valid call: two sequences with three pages of four rows each."""
    caches = {"k_cache": np.ones((7, 4, 2, 8)), "v_cache": np.ones((7, 4, 2, 6))}
    new = {"k": np.ones((2, 3, 2, 8)), "v": np.ones((2, 3, 2, 6))}
    rows = new if stores else {"q": np.ones((2, 2, 4, 8))}
    found = {word: x.astype(np.float32) for word, x in (rows | caches).items()}
    found |= {"key_length": LENGTHS, "page_table": TABLE} | changes
    return {word: x for word, x in found.items() if x is not None}


def refused(call, name, kind, text, given):
    """Checks the error of a call, and that it has written nothing."""
    given = {word: call.to(x.copy() if hasattr(x, "copy") else x) for word, x in given.items()}
    before = {word: np.array(x) for word, x in given.items() if word.endswith("_cache")}
    with pytest.raises(kind) as error:
        getattr(call.ops, name)(**given)
    assert str(error.value).startswith(f"kf.{name}: {text}")
    assert all(np.array_equal(np.array(given[word]), x) for word, x in before.items())


HUGE = 2**31 - 1
OF_DECODE = {
    "one row more": (
        {"key_length": changed(LENGTHS, 1, 13)},
        IndexError,
        "key_length is 13 at (1,), expected 0 to 12: a sequence has 12 rows in k_cache",
    ),
    "below": (
        {"key_length": changed(LENGTHS, 0, -1)},
        IndexError,
        "key_length is -1 at (0,), expected 0 to 12",
    ),
    "contiguous": (
        {"page_table": None},
        IndexError,
        "key_length is 9 at (0,), expected 0 to 4: a sequence has 4 rows in k_cache",
    ),
    "block": (
        {"page_table": changed(TABLE, (1, 1), 7)},
        IndexError,
        "page_table is 7 at (1, 1), expected at least 0 and less than 7, the blocks of k_cache",
    ),
    "block below": (
        {"page_table": changed(TABLE, (0, 2), -1)},
        IndexError,
        "page_table is -1 at (0, 2), expected at least 0",
    ),
    "window": (
        {"page_table": changed(TABLE, (0, 1), HUGE), "left": 2},
        IndexError,
        f"page_table is {HUGE} at (0, 1)",
    ),
    "batch of a contiguous cache": (
        {"k_cache": np.ones((1, 4, 2, 8), np.float32), "page_table": None}
        | {"v_cache": np.ones((1, 4, 2, 6), np.float32), "key_length": np.int32([1, 1])},
        ValueError,
        "k_cache has the shape (1, 4, 2, 8), expected at least 2 sequences, those of q, without "
        "page_table",
    ),
    "batch of a table": (
        {"page_table": np.zeros((3, 3), np.int32)},
        ValueError,
        "page_table has the shape (3, 3), expected (2, 3) beside q of the shape (2, 2, 4, 8)",
    ),
    "batch of lengths": (
        {"key_length": np.int32([1, 1, 1])},
        ValueError,
        "key_length has the shape (3,), expected (2,) beside q of the shape (2, 2, 4, 8)",
    ),
    "heads": (
        {
            "k_cache": np.ones((7, 4, 3, 8), np.float32),
            "v_cache": np.ones((7, 4, 3, 6), np.float32),
        },
        ValueError,
        "k_cache has 3 heads, expected a divisor of the 4 of q",
    ),
}


@frontend.parametrize()
@pytest.mark.parametrize("what", OF_DECODE)
def test_decode(kf, which, what):
    changes, kind, text = OF_DECODE[what]
    call = frontend.Frontend(which, kf)
    refused(call, "attention_decode", kind, text, given(False, **changes))


@frontend.parametrize()
def test_decode_reads_no_other_block(kf, which):
    """Blocks behind a sequence, and in front of a window, may have any number."""
    call = frontend.Frontend(which, kf)
    for place, more in (((1, 2), {}), ((0, 0), {"left": 3})):
        wanted = call("attention_decode", **given(False, **more))
        table = changed(TABLE, place, -1)
        assert np.array_equal(
            call("attention_decode", **given(False, page_table=table, **more)), wanted
        )


OF_APPEND = {
    "a full cache": (
        {"key_length": changed(LENGTHS, 0, 12)},
        IndexError,
        "key_length is 12 at (0,), expected 0 to 9: a sequence has 12 rows in k_cache, with 3 of k "
        "behind",
    ),
    "one row more": (
        {"key_length": changed(LENGTHS, 0, 10)},
        IndexError,
        "key_length is 10 at (0,), expected 0 to 9",
    ),
    "below": (
        {"key_length": changed(LENGTHS, 1, -3)},
        IndexError,
        "key_length is -3 at (1,), expected 0 to 9",
    ),
    "more rows than a cache": (
        {"page_table": np.zeros((2, 0), np.int32), "key_length": np.int32([0, 0])},
        IndexError,
        "k has 3 rows of a sequence, expected at most 0, the rows of a sequence in k_cache",
    ),
    "block": (
        {"page_table": changed(TABLE, (0, 2), 7)},
        IndexError,
        "page_table is 7 at (0, 2), expected at least 0 and less than 7, the blocks of k_cache",
    ),
    "position": (
        ANGLES | {"position": np.int32([[0, 1, 2], [3, 14, 5]])},
        IndexError,
        "position is 14 at (1, 1), expected at least 0 and less than 14",
    ),
    "row without angles": (
        {word: x[:11] for word, x in ANGLES.items()},
        IndexError,
        "key_length is 9 at (0,), expected at most 8: cosine has 11 rows, with 3 of k behind",
    ),
    "cosine alone": (
        {"cosine": ANGLES["cosine"]},
        ValueError,
        "cosine is given without sine, expected cosine and sine, or neither",
    ),
    "sine alone": (
        {"sine": ANGLES["sine"]},
        ValueError,
        "sine is given without cosine, expected cosine and sine, or neither",
    ),
    "batch of a contiguous cache": (
        {"k_cache": np.ones((1, 9, 2, 8), np.float32), "page_table": None}
        | {"v_cache": np.ones((1, 9, 2, 6), np.float32), "key_length": np.int32([1, 1])},
        ValueError,
        "k_cache has the shape (1, 9, 2, 8), expected at least 2 sequences, those of k, without "
        "page_table",
    ),
    "batch of a table": (
        {"page_table": np.zeros((3, 3), np.int32)},
        ValueError,
        "page_table has the shape (3, 3), expected (2, 3) beside k of the shape (2, 3, 2, 8)",
    ),
}


@frontend.parametrize("numpy", "torch")
@pytest.mark.parametrize("name", ["kv_append", "kv_append_interleaved"])
@pytest.mark.parametrize("what", OF_APPEND)
def test_append(kf, which, name, what):
    changes, kind, text = OF_APPEND[what]
    refused(frontend.Frontend(which, kf), name, kind, text, given(True, **changes))


@frontend.parametrize("numpy", "torch")
def test_append_needs_no_other_block(kf, which):
    call = frontend.Frontend(which, kf)
    lengths = changed(LENGTHS, 1, 4)  # rows 4 to 6: the page 1
    table = changed(changed(TABLE, (1, 0), -1), (1, 2), HUGE)
    more = {word: call.to(x) for word, x in given(True, key_length=lengths).items()}
    assert call.ops.kv_append(**more | {"page_table": call.to(table)}) is None


def test_documentation(kf):
    text = "out of range: IndexError on the CPU, else NaN"
    of_decode, of_append = kf.ops.attention_decode.__doc__, kf.ops.kv_append.__doc__
    assert of_decode.count(text) == 2 and of_append.count(f"{text}, or no row") == 3
    assert of_append.count("None stands for keys as they are; cosine and sine: both or nei") == 2


def test_compiled_programs(kf):
    """Kernels give NaN where values are unknown."""
    torch = pytest.importorskip("torch")
    call = torch.compile(kf.ops.attention_decode, fullgraph=True, backend="aot_eager")
    wrong = given(False, key_length=changed(LENGTHS, 1, 13))
    found = call(**{word: torch.from_numpy(x) for word, x in wrong.items()})
    assert found[1].isnan().all() and not found[0].isnan().any()
