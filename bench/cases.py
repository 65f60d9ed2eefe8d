# SPDX-License-Identifier: Apache-2.0
"""Turns shapes.toml and the manifest into a list of cases: one function at one shape."""

import dataclasses
import math
import pathlib
import tomllib

ITEM = {"f32": 4, "f16": 2, "bf16": 2}


@dataclasses.dataclass
class Case:
    f: dict               # the function's entry of the manifest
    sizes: tuple          # n | rows, cols | outer, channels, inner
    peers: tuple
    skip: tuple = ()      # gradients that nobody computes
    shared: bool = False  # gradients that are proven equal share one pointer

    @property
    def key(self):
        return f"{self.f['name']} {'x'.join(map(str, self.sizes))}"

    @property
    def inputs(self):
        return [a for a in self.f["arguments"] if a["role"] == "in"]

    @property
    def outputs(self):
        """What a call writes: a gradient that shares another's memory is not listed again."""
        return [a for a in self.f["arguments"] if a["role"] in ("out", "sum") and a["name"] not in self.skip
                and not (self.shared and a["same_as"])]

    @property
    def elements(self):
        return math.prod(self.sizes)

    def shape(self, a):
        """Its extents in the manifest are sizes and products of them, such as 2 * cols."""
        at = dict(zip(self.f["sizes"], self.sizes))
        return tuple(math.prod(int(at.get(word, word)) for word in extent.split(" * ")) for extent in a["shape"])

    @property
    def bytes(self):
        """Every tensor that the call touches, once."""
        touched = [a for a in self.inputs if not a["unread"]] + self.outputs
        return sum(math.prod(self.shape(a)) * ITEM[a["dtype"]] for a in touched)


def _sizes(f, size, entry, shapes):
    """Every shape that the function gets for one entry of `size`."""
    if "shape" in size:
        rows, cols = size["shape"]
        count = rows * cols
    else:
        widths = [ITEM[a["dtype"]] for a in f["arguments"] if a.get("kind") in ("elem", "half")]
        count, cols = size["mib"] * 2**20 // min(widths), entry["cols"]
    if f["form"] == "flat":
        return [(count,)]
    if f["form"] == "rows":
        return [(count // cols, cols)]
    if f["form"] != "planes":
        raise SystemExit(f"bench: no shapes for {f['name']}, whose tensors lie as {f['form']}")
    return [(-(-count // (channels * inner)), channels, inner) for channels, inner in shapes]


def load(name, manifest):
    path = pathlib.Path(__file__).with_name("shapes.toml")
    data = tomllib.loads(path.read_text())
    if name not in data["set"]:
        raise SystemExit(f"bench: no set {name!r} in {path.name}; there are {', '.join(data['set'])}")
    entry = data["set"][name]
    lists = data["functions"]

    def listed(f, which):
        return which == "all" or f["activation"] in lists[which].get(f["op"], ())

    cases = {}  # by key: two shapes of as many elements are one case to a function of n elements
    for f in manifest["functions"]:
        if f["family"] != "map":  # rows.py's
            continue
        if f["state"] or not listed(f, entry["functions"]) or not set(f["dtypes"]) <= set(entry["dtypes"]):
            continue
        for size in entry["size"]:
            if f["dtypes"][0] not in size.get("dtypes", entry["dtypes"]) or (size.get("sums") and not f["workspace"]):
                continue
            peers = tuple(p for p in entry["peers"] if not (p == "compile" and "compile" in entry and not listed(f, entry["compile"])))
            skip = ()
            if entry["as_called"] and f["bwd"]:
                identity = data["identity_gradients"].get(f["op"], {})
                skip = tuple(identity.get(f["activation"], identity.get("any", ())))
            for sizes in _sizes(f, size, entry, entry["images"]):
                case = Case(f, sizes, peers, skip, entry["as_called"])
                if case.outputs:
                    cases[case.key] = case
    return entry, list(cases.values())
