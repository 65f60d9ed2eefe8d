# SPDX-License-Identifier: Apache-2.0
"""Calls of attention on a GPU: head dimensions, groups of heads, lengths, layouts and scales, in
turn. Every list has another length, so that the calls combine their entries in many ways."""

from launcher import DENSE, HEADS_FIRST, PACKED, Case

# Dimensions of tensor cores: whole tiles and others, dim_v of its own.
DIMS = [
    (8, 8),
    (64, 64),
    (40, 40),
    (72, 72),
    (128, 128),
    (80, 96),
    (192, 128),
    (256, 256),
    (160, 160),
    (24, 136),
    (248, 200),
]
ODD_DIMS = [(7, 3), (65, 65), (129, 200), (0, 8), (255, 256), (300, 72)]
HEADS = [(1, 1), (4, 1), (8, 2), (7, 1), (6, 3), (3, 3), (14, 2)]
# No query, no key, one of each, tiles and their neighbours, more keys than queries and fewer.
LENGTHS = [
    (64, 64),
    (65, 63),
    (1, 130),
    (127, 129),
    (33, 200),
    (130, 33),
    (1, 1),
    (257, 255),
    (2, 513),
]
EMPTY = [(0, 5), (5, 0), (0, 0)]
LAYOUTS = [DENSE, HEADS_FIRST, PACKED, DENSE, HEADS_FIRST]
FACTORS = [1.0, -1.0, 0.0, 0.5]  # times dim ** -0.5
SHARDS = [
    {},
    {"query_base": 30, "queries_total": 110},
    {"key_base": 25, "keys_total": 130, "head_base": 2},
]


def case(i, dims, lengths, offset=0, shard=None):
    """Returns the i-th combination."""
    (dim, dim_v), (heads, kv_heads) = dims, HEADS[i % len(HEADS)]
    scalars = {"scale": FACTORS[i % len(FACTORS)] * max(dim, 1) ** -0.5}
    scalars |= {"softcap": 2.5, "left": (0, 20, 2**63 - 1)[i % 3], "right": (3, 0)[i % 2]}
    return Case(
        *lengths,
        dim,
        dim_v,
        heads,
        kv_heads,
        batch=1 + i % 2,
        layout=LAYOUTS[i % len(LAYOUTS)],
        offset=offset,
        scalars=scalars,
        shard=shard or {},
        saved=(("lse", "row_max", "log_sum"), ("lse",), ())[i % 3],
        seed=i,
    )


def aligned(dims=tuple(DIMS)):
    """Calls that wgmma computes: each dimension with four lengths."""
    return [
        case(4 * i + j, d, LENGTHS[(4 * i + j) % len(LENGTHS)])
        for i, d in enumerate(dims)
        for j in range(4)
    ]


def others(dims=tuple(DIMS), odd=tuple(ODD_DIMS)):
    """Calls that wgmma does not compute: unaligned rows, odd dimensions, empty tensors."""
    found = [case(i, d, LENGTHS[i % len(LENGTHS)], offset=1) for i, d in enumerate(dims)]
    found += [case(i, d, LENGTHS[(2 * i) % len(LENGTHS)]) for i, d in enumerate(odd)]
    return found + [case(i, dims[0], lengths) for i, lengths in enumerate(EMPTY)]


def shards():
    """Calls of parts of longer sequences."""
    return [case(i, (64, 64), (70, 101), shard=shard) for i, shard in enumerate(SHARDS * 2)]
