# SPDX-License-Identifier: Apache-2.0
"""Compiles headers whose operands have the names of identifiers in generated code, as C++ and with
nvcc. Level 2 takes all ops, level 1 one per family. The tests of numbers cover the other compilers.
"""

import cases
import odd_names
import pytest
from compilers import (
    ARCH,
    GCC,
    NVCC,
    NVCC_WARNINGS,
    WARNINGS,
    addresses,
    flags,
    passes,
    quick,
    write,
)
from kfgen.families import FAMILIES


@pytest.mark.parametrize("family", odd_names.ENTRIES)
def test_c_as_cpp(include, once, tmp_path, family):
    path, found, _ = odd_names.made(once, family)
    text = "".join(
        f'#include "{header}.h"\n' for header in dict.fromkeys(f["header"] for _, f in found)
    )
    [source] = write(tmp_path, {"all.cpp": text + "extern int not_empty;\n"})
    passes(
        [*GCC["c++17"], "-O1", *WARNINGS, "-fsyntax-only", *flags([*include, path.parent]), source]
    )


@pytest.mark.skipif(not NVCC, reason="no nvcc")
@pytest.mark.parametrize(
    "family", [name for name in odd_names.ENTRIES if "cuda" in FAMILIES[name].backends]
)
def test_nvcc(include, once, tmp_path, family):
    path, found, _ = odd_names.made(once, family)
    wanted = cases.by_level(
        [f for _, f in found if f["op"].startswith("odd0")], [f for _, f in found]
    )
    [source] = write(tmp_path, {"all.cu": addresses(wanted)})
    passes(
        [
            NVCC,
            "-O1",
            ARCH,
            *quick(),
            *NVCC_WARNINGS,
            "-c",
            *flags([*include, path.parent]),
            source,
            "-o",
            tmp_path / "all.o",
        ],
        cwd=tmp_path,
    )
