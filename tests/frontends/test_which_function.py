# SPDX-License-Identifier: Apache-2.0
"""Compares the PyTorch expressions of docs/which_function.md with the functions beside them."""

import itertools
import re

import kflib
import kfpython
import pytest
import pytorch

torch = pytorch.load()

kfpython.use()

import kernel_fusion as kf  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from kernel_fusion import _interpreted, _library, _table  # noqa: E402
from kernel_fusion._sizes import value  # noqa: E402
from kfgen.entries import spec as specs  # noqa: E402
from kfgen.interfaces import manifest  # noqa: E402
from kfgen.model import shapes  # noqa: E402
from kfgen.render.render import Selection  # noqa: E402

PAGE = (kflib.ROOT / "docs/which_function.md").read_text()
# Pages that define what expressions call.
DEFINED = PAGE + (kflib.ROOT / "docs/which_attention.md").read_text()
ROW = re.compile(r"^\| `([^`]+)`[^|]* \| `(kf\.ops\.([\w{}]+)\(.*\))` \|", re.M)
COMPANIONS = re.compile(r"^Each function of this table exists with `(_\w+)`", re.M)
PACKED = [
    (*row, suffix)
    for section in PAGE.split("\n## ")
    for suffix in COMPANIONS.findall(section)
    if suffix == "_varlen"
    for row in ROW.findall(section)
]
SIZES = {
    "outer": [3],
    "inner": [4],
    "axis": [5],
    "channels": [6],
    "length": [],
    "batch": [],
    "rows": [5],
    "cols": [6],
    "depth": [3],
    "n": [5, 6],
    "vocab": [9],
    "positions": [5],
    "types": [2],
    "heads": [2],
    "kv_heads": [1],
    "dim": [8],
    "dim_v": [8],
    "pairs": [4],
    "queries": [5],
    "keys": [7],
}
SCORES = SIZES | {"batch": [2], "heads": [3]}
ATTENTION = SIZES | {"batch": [2], "dim_v": [4]}
CACHES = SIZES | {"batch": [2], "queries": [2], "blocks": [7], "page_size": [4], "pages": [3]}
IMAGES = SIZES | {"batch": [2], "pixels": [4, 5]}
# Names of the page that are not operands, and operands with other names.
OTHERS = {"mean": "running_mean", "var": "running_var", "seen": "mask"}
CLASSES = {"label": 6, "index": 9, "position": 5, "type": 2}
# A table of blocks, and the rows of sequences.
NUMBERS = {"page_table": [[0, 4, 2], [6, 1, 3]], "key_length": [9, 5]}
# A block of 64 queries and keys, and the bits of its keys, the same for all queries.
NUMBERS |= {"block_offsets": [[[0, 1]]], "key_blocks": [[0, 0]]}
NUMBERS |= {"block_masks": [[[0x2B, 0]] * 64]}
LENGTHS = ((3, 5), (0, 2), (4, 4))  # queries and keys of packed sequences


def drawn(op, t, rng, lengths):
    """Returns a tensor for an operand: row indices, conditions, probabilities or numbers."""
    sizes = ATTENTION if "dim_v" in op.rules.sizes else SIZES
    sizes = CACHES if "page_size" in op.rules.sizes else sizes
    sizes = IMAGES if "pixels" in op.rules.sizes else sizes
    sizes = SCORES if op.name.startswith("scale_") and "queries" in op.rules.sizes else sizes
    if op.rules.count.get("batch") == 1:  # an axis of its own, not all axes before the others
        sizes = sizes | {"batch": [2]}
    sizes = sizes | lengths
    if t.name in NUMBERS:
        return torch.tensor(NUMBERS[t.name], dtype=torch.int32)
    shape = []
    for extent in t.extents:
        [size] = shapes.names(extent)
        shape += [value(extent, {size: n}) for n in sizes[size]]
    if t.name in CLASSES:
        dtype = torch.int32 if t.var == "i32" else torch.int64
        return torch.randint(0, CLASSES[t.name], shape, generator=rng, dtype=dtype)
    if t.var == "u8":
        return torch.rand(shape, generator=rng) > 0.3
    x = torch.randn(shape, generator=rng, dtype=torch.float64)
    return x.softmax(-1) if t.name in ("target", "running_var") else x


def operands(op, seed=0, lengths=None):
    """Draws the operands of an op. lengths: sizes other than the usual ones."""
    rng = torch.Generator().manual_seed(seed)
    return {t.name: drawn(op, t, rng, lengths or {}) for t in op.forward.inputs}


def names(found):
    """Returns the values of the page's names for an op's operands."""
    found = found | {name: found[own].clone() for name, own in OTHERS.items() if own in found}
    queries, keys = SCORES["queries"][0], SCORES["keys"][0]
    if "q" in found and "k" in found:
        queries, keys = found["q"].shape[1], found["k"].shape[1]
    distance = torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)
    helpers = {"distance": distance, "causal": distance >= 0}
    helpers |= {"torch": torch, "F": F, "act": F.gelu, "p": 0.0, "dim": 1}
    if "block_masks" in found:
        helpers["seen"] = (found["block_masks"][0, 0, 0] >> torch.arange(keys)) % 2 > 0
    exec("".join(re.findall(r"```python\n(def .*?)```", DEFINED, re.S)), helpers | found, helpers)
    for helper in helpers.values():
        if hasattr(helper, "__globals__"):
            helper.__globals__.update(helpers | found)
    return helpers | found | {"kf": kf}


def evaluated(text, values):
    """Returns the results of `name = value; ...; result`, a tuple of tensors."""
    *before, last = text.split("; ")
    values = dict(values)
    for statement in before:
        exec(statement, values)
    found = eval(last, values)
    return tuple(found) if isinstance(found, tuple) else (found,)


def interpreted(op):
    """NumPy's evaluation of an op that the package of level 1 lacks."""
    chosen = Selection(specs.load(), ops=[op.name], activations=["none", "gelu"])
    return _interpreted.Interpreted(manifest.build(chosen))


def arrays(values):
    return {n: v.numpy() if isinstance(v, torch.Tensor) else v for n, v in values.items()}


@pytest.mark.check
@pytest.mark.parametrize("row", ROW.findall(PAGE), ids=lambda row: row[2])
def test_both_expressions_are_equal(row, monkeypatch):
    expression, call, pattern = row
    op = op_of(pattern)
    values = names(operands(op))
    if op.forward.updates:
        compare_updates(op, expression, call, values, monkeypatch)
        return
    compare(op, call, values, evaluated(expression, values), monkeypatch)


def op_of(pattern):
    return next(op for op in _table.ops().values() if op.pattern == pattern)


def compare(op, call, values, wanted, monkeypatch):
    """Evaluates the page's call of an op and compares its results."""
    if not kfpython.WHOLE and op.name not in kfpython.OPS:
        library = interpreted(op)
        monkeypatch.setattr(_library, "of", lambda _: library)
        values = arrays(values)
    got = evaluated(call.replace("{act}", "gelu"), values)
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted, strict=True):
        a = torch.as_tensor(a)
        assert a.shape == b.shape
        assert torch.allclose(a.double(), b.double(), atol=1e-6, equal_nan=True)


def compare_updates(op, expression, call, values, monkeypatch):
    """Compares the operands that both expressions overwrite, each its own."""
    written = [t.name for t in op.forward.inputs if t.role == "inout"]
    own = names(operands(op))
    before = {name: values[name].clone() for name in written}
    evaluated(expression, values)
    if not kfpython.WHOLE and op.name not in kfpython.OPS:
        library = interpreted(op)
        monkeypatch.setattr(_library, "of", lambda _: library)
        own = arrays(own)
    evaluated(call.replace("{act}", "gelu"), own)
    for name in written:
        found = torch.as_tensor(own[name])
        assert torch.allclose(found, values[name], atol=1e-6) and (found != before[name]).any()


def packed(op, sequences):
    """Returns the operands of packed sequences: rows one after the other, scores padded to the
    longest sequence, others as the first sequence has them."""
    found = dict(sequences[0])
    for t in op.forward.inputs:
        own = [operands.get(t.name) for operands in sequences]
        if t.extents[0] in ("queries", "keys"):
            found[t.name] = torch.cat(own, 1)[0]
        elif t.extents[0] == "batch":
            most = [max(sizes) for sizes in zip(*LENGTHS)]
            found[t.name] = own[0].new_zeros(len(own), own[0].shape[1], *most)
            for i, scores in enumerate(own):
                found[t.name][i, :, : scores.shape[2], : scores.shape[3]] = scores[0]
    for name, lengths in zip(("query_offsets", "key_offsets"), zip(*LENGTHS)):
        found[name] = torch.tensor([0, *itertools.accumulate(lengths)])
    return found


def test_packed_functions_are_found():
    assert len(PACKED) > 4


@pytest.mark.check
@pytest.mark.parametrize("row", PACKED, ids=lambda row: row[2] + row[3])
def test_the_expression_holds_for_each_sequence(row, monkeypatch):
    expression, call, pattern, suffix = row
    of_one, op = op_of(pattern), op_of(pattern + suffix)
    sequences = [
        operands(of_one, seed, {"batch": [1], "queries": [queries], "keys": [keys]})
        for seed, (queries, keys) in enumerate(LENGTHS)
    ]
    shared = {t.name for t in op.forward.inputs if t.extents[0] == "heads"}
    for sequence in sequences:
        sequence |= {name: sequences[0][name] for name in shared}
    wanted = [evaluated(expression, names(sequence))[0] for sequence in sequences]
    call = call.replace(f"{pattern}(q, k, v", f"{op.name}(q, k, v, query_offsets, key_offsets")
    values = names(packed(op, sequences))
    compare(op, call, values, (torch.cat(wanted, 1)[0],), monkeypatch)
