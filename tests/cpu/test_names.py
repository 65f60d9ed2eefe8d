# SPDX-License-Identifier: Apache-2.0
"""Tests C functions whose operands have the names of identifiers in generated code."""

import checks
import kflib
import odd_names
import pytest

STRICT = ("-O1", "-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror")


@pytest.mark.parametrize("family", odd_names.ENTRIES)
def test_any_name_will_do(include, once, tmp_path, family):
    path, found, _ = odd_names.made(once, family)
    found = odd_names.some(found, 3)
    lib = kflib.build(
        "cpu",
        odd_names.all_of(found),
        tmp_path / "lib",
        flags=STRICT,
        include=[*include, path.parent],
    )
    memory = checks.CpuMemory()
    for plain, odd in found:
        odd_names.compare(lib, memory, path, plain, odd)
