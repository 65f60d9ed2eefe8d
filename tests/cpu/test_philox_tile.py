# SPDX-License-Identifier: Apache-2.0
"""Tests a tile's random words against Philox one counter at a time, with vectors of every width and
without vectors."""

import subprocess

import pytest

PROGRAM = r"""
#include <stdint.h>
#include <stdio.h>
#include "kf/core/philox_tile.h"

int main(void)
{
    /* The low word of a counter wraps at 2^35. */
    static const long long firsts[] = {0, 1, 7, 8, 256, 1000003, (1LL << 35) - 256,
                                       (1LL << 35) - 64, (1LL << 35) - 61, 1LL << 35,
                                       (1LL << 40) + 5, (1LL << 60) + 3};
    static uint16_t words[KFI_TILE + 8];
    long wrong = 0, count = 0;
    for (unsigned s = 0; s < 20; ++s)
        for (unsigned f = 0; f < sizeof firsts / sizeof *firsts; ++f) {
            const kfi_rng rng = kfi_make_rng(0.3, 0x9E3779B97F4A7C15ull * (s + 1),
                                             s % 3 ? 0xD1B54A32D192ED03ull * s : 0, 0, 0);
            kfi_random_tile(words, &rng, firsts[f]);
            for (int j = 0; j < KFI_TILE; ++j) {
                const uint64_t i = (uint64_t)firsts[f] + (uint64_t)j;
                kfi_u32 w[4];
                kfi_philox(&rng, i / 8, &w[0], &w[1], &w[2], &w[3]);
                wrong += words[firsts[f] % 8 + j] != (uint16_t)(w[i % 8 / 2] >> 16 * (i % 2));
                ++count;
            }
        }
#ifdef KFI_LANES
    printf("%d lanes, ", KFI_LANES);
#else
    printf("no lanes, ");
#endif
    printf("%ld of %ld wrong\n", wrong, count);
    return 0;
}
"""
BUILDS = {
    "-O2": "2 lanes",
    "-O2 -mavx2": "4 lanes",
    "-O0 -mavx2": "4 lanes",
    "-O3 -mavx512f": "8 lanes",
    "-O2 -U__SSE2__": "no lanes",
}


@pytest.mark.parametrize("compiler", ["gcc -std=c11", "g++ -std=c++17 -x c++"])
@pytest.mark.parametrize("flags", BUILDS)
def test_words(include, tmp_path, compiler, flags):
    (tmp_path / "words.c").write_text(PROGRAM)
    warnings = "-Wall -Wextra -Wshadow -Wconversion -Werror".split()
    command = [
        *compiler.split(),
        *flags.split(),
        *warnings,
        *(f"-I{d}" for d in include),
        "words.c",
        "-o",
        "words",
    ]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    cpu = open("/proc/cpuinfo").read().split()
    if any(flag[2:] not in cpu for flag in flags.split() if flag.startswith("-m")):
        pytest.skip("it compiles; this machine has no such vectors")
    ran = subprocess.run([tmp_path / "words"], capture_output=True, text=True)
    assert ran.stdout == f"{BUILDS[flags]}, 0 of 122880 wrong\n"
