# SPDX-License-Identifier: Apache-2.0
"""Splits level 1 into two tiers, which together run every test once, and sums their outcomes.

    KF_TIER=quick   `make test`: the generator, pages, Python, and the numbers of a few functions
                    that cover each family's loops in each dtype (selection.thin_gate); no test
                    that is marked `check`
    KF_TIER=rest    `make check`: everything else, but not the tests of a family that is unchanged
                    since all of them passed, nor a group of GROUPS of which nothing has changed
                    since then (ledger.py)
    KF_FAMILY=rows  `make test FAMILY=rows`: of the quick tier what concerns one family

Without either, and above level 1, all tests run. As a program, prints the sum of both tiers as one
line (.ci/run ends with it) and fails if one of them did not finish.
"""

import json
import os
import pathlib
import re
import sys

TIER = os.environ.get("KF_TIER", "") if os.environ.get("KF_LEVEL", "1") == "1" else ""
FAMILY = os.environ.get("KF_FAMILY", "")
TIERS = ("quick", "rest")
# Tests of all families together, as regular expressions of their files. Builds by make and pip
# depend on the machine's tools, and are in no group.
GROUPS = {
    "all headers": r"tests/(cpu|emu|headers)/",
    "build systems": r"tests/build/test_(cmake|dist|launch\w+|meson|pkg_config|single)\.py",
}
# Files, from the root, that a group reads beside the headers of all families and its own folders.
READ = {"all headers": (), "build systems": ("*", "gen/**/*", "templates/**/*", "include/**/*")}
OUTCOMES = pathlib.Path(__file__).resolve().parents[3] / "build/tests/outcomes"
COUNTED = ("passed", "failed", "error", "skipped")
QUICK = re.compile(
    r"tests/(gen|docs|frontends)/|tests/families/\w+/test_(gen|frontends)|"
    r"tests/fuzz/(?!test_(arguments|maps))"
)
# Numbers of both backends: in each tier of other functions (numeric.GATE).
NUMBERS = ("tests/cpu/test_numbers.py", "tests/emu/test_numbers.py")


def family(path, parameters):
    """Returns the family that a test is about, "" if it is about no single one.

    path: of the test's file, from the root. parameters: the test's own, by name.
    """
    found, f = re.match(r"tests/families/(\w+)/", path), parameters.get("f")
    return found[1] if found else f.get("family", "") if isinstance(f, dict) else ""


def group(path):
    """Returns the name in GROUPS of a file's tests, else ""."""
    return next((name for name, files in GROUPS.items() if re.match(files, path)), "")


def is_quick(path, parameters, check, early):
    """True for a test of the quick tier. check: its mark. early: names of the functions whose
    numbers the quick tier has."""
    if path in NUMBERS:
        return not check and ("f" not in parameters or parameters["f"]["name"] in early)
    return not check and bool(QUICK.match(path))


def runs(path, parameters, check, early=(), unchanged=lambda family: False):
    """True if a test runs in the tier and for the family that were asked for. For arguments see
    family and is_quick; unchanged: tells if a family is."""
    if FAMILY:
        own = re.match(rf"tests/families/{FAMILY}/test_(gen|cpu|frontends)", path)
        return bool(own) or path in NUMBERS and "f" in parameters
    if not TIER:
        return True
    if is_quick(path, parameters, check, early):
        return TIER == "quick"
    return TIER == "rest" and not rests(path, parameters, unchanged)


def rests(path, parameters, unchanged):
    """True if a test of the second tier need not run: its family or group is unchanged."""
    about = family(path, parameters) or group(path)
    return bool(about) and unchanged(about)


def resting_files(tests, unchanged):
    """Returns the files, from `tests`, of tests that the second tier leaves out as unchanged.

    Args:
        tests: see `of`.
    """
    found = {
        path
        for path, parameters, _ in tests
        if TIER == "rest" and rests(path, parameters, unchanged)
    }
    return sorted(path.removeprefix("tests/") for path in found)


def of(item, root):
    """Returns the arguments of `runs` that say which test an item is."""
    path = pathlib.Path(item.path).relative_to(root).as_posix()
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return path, parameters, item.get_closest_marker("check") is not None


def split(items, root, early=(), unchanged=lambda family: False):
    """Returns the tests that run and those that do not; early, unchanged: see runs."""
    found = {True: [], False: []}
    for item in items:
        found[runs(*of(item, root), early, unchanged)].append(item)
    return found[True], found[False]


def has_none(path):
    """True for a file without tests of the tier, which need not be imported. path: from the
    root."""
    return TIER == "quick" and not FAMILY and path not in NUMBERS and not QUICK.match(path)


def check_family(families):
    """Raises ValueError for an unknown KF_FAMILY; families: the names of all."""
    if FAMILY and FAMILY not in families:
        raise ValueError(f"FAMILY={FAMILY} is no family, expected one of {', '.join(families)}")


def record(stats):
    """Files a run's outcomes. stats: {outcome: reports}, pytest's own."""
    OUTCOMES.mkdir(parents=True, exist_ok=True)
    counts = {name: len(stats.get(name, ())) for name in COUNTED}
    (OUTCOMES / f"{TIER}.json").write_text(json.dumps(counts))


def total():
    """Returns the exit status, after printing the sum of both tiers."""
    files = [OUTCOMES / f"{tier}.json" for tier in TIERS]
    counts = [json.loads(f.read_text()) for f in files if f.is_file()]
    passed, failed, errors, skipped = (sum(c[name] for c in counts) for name in COUNTED)
    print(f"{passed} passed, {failed + errors} failed, {skipped} skipped")
    return 0 if len(counts) == len(files) and not failed + errors else 1


if __name__ == "__main__":
    sys.exit(total())
