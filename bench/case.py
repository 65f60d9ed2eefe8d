# SPDX-License-Identifier: Apache-2.0
"""Turns shapes.toml, with a file of shapes/ for each family, and the manifest into a list of cases: one function at one shape. Needs no GPU and no
PyTorch."""

import dataclasses
import math
import pathlib
import tomllib

ITEM = {"f32": 4, "f16": 2, "bf16": 2, "f64": 8, "i32": 4, "i64": 8, "u8": 1}
PATH = pathlib.Path(__file__).with_name("shapes.toml")
# What rows of batches, heads and groups are made of: as many channels as PyTorch's users have, and the same for every function.
CHANNELS, HEADS, GROUPS, PARTS, BATCH = 64, 16, 32, 8, 32


@dataclasses.dataclass
class Case:
    f: dict  # the function's entry of the manifest
    sizes: tuple
    peers: tuple = ()
    at: object = ""  # the column of a table: elements a row, or a shape in words
    skip: tuple = ()  # tensors that nobody asks for: NULL
    shared: bool = False  # gradients that are proven equal share one pointer
    scalars: dict = dataclasses.field(default_factory=dict)
    forward: dict = None  # of a gradient: its forward's entry
    any: dict = None  # the function for any activation that it may be called by
    memory: bool = False  # whether it is said how much memory each contender takes
    by_result: list = None  # of one by the activation's result: its statements of torch
    python: str = ""  # called through Python: "forward", or "both", with its gradient
    gradient: object = None  # then the gradient's case

    @property
    def key(self):
        return f"{self.f['name']} {'x'.join(map(str, self.sizes))}"

    @property
    def variant(self):
        """NHWC, where a group's or a channel's elements of a place lie side by side."""
        return "NHWC" if self.f["form"] in ("groups", "channels") and self.sizes[-1] == 1 else ""

    @property
    def inputs(self):
        return [a for a in self.f["arguments"] if a["role"] == "in" and a["name"] not in self.skip]

    @property
    def outputs(self):
        """What a call writes: a gradient that shares another's memory is not listed again."""
        return [
            a
            for a in self.f["arguments"]
            if a["role"] in ("out", "sum")
            and a["name"] not in self.skip
            and not (self.shared and a["same_as"])
        ]

    @property
    def results(self):
        """What PyTorch's form of the forward returns, in order: outputs that nobody may leave out."""
        return [
            a["name"]
            for a in (self.forward or self.f)["arguments"]
            if a["role"] == "out" and not a["null"] and a["name"] not in self.skip
        ]

    @property
    def saved(self):
        """Inputs of a gradient that its forward writes."""
        written = (
            {a["name"] for a in self.forward["arguments"] if a["role"] == "out"}
            if self.forward
            else set()
        )
        return [a["name"] for a in self.inputs if a["name"] in written and not a["unread"]]

    @property
    def wanted(self):
        """The inputs whose gradients are asked for."""
        written = {
            a["name"]
            for a in self.f["arguments"]
            if a["role"] in ("out", "sum") and a["name"] not in self.skip
        }
        return [a["name"] for a in self.inputs if f"d{a['name']}" in written]

    @property
    def elements(self):
        """Of a result: how many groups its channels make does not count. Where one tensor does not say all sizes, of the largest that has rows."""
        if not self.f["axes"] or self.f["axes"]["shaped_by"]:
            return max(
                math.prod(self.shape(a))
                for a in self.f["arguments"]
                if a.get("shape", [""])[0] == self.f["sizes"][0]
            )
        return math.prod(n for name, n in zip(self.f["sizes"], self.sizes) if name != "groups")

    def shape(self, a):
        """Its extents in the manifest are sizes and products of them, such as 2 * cols."""
        at = dict(zip(self.f["sizes"], self.sizes))
        return tuple(
            math.prod(int(at.get(word, word)) for word in extent.split(" * "))
            for extent in a["shape"]
        )

    def size(self, a):
        return math.prod(self.shape(a)) * ITEM[a["dtype"]]

    @property
    def bytes(self):
        """Every tensor that the call touches, once: of one that is read at places of its own, as much as the manifest says."""
        if not self.f["axes"] or self.f["axes"]["shaped_by"]:
            whole = eval(self.f["cost"]["bytes"], {}, dict(zip(self.f["sizes"], self.sizes)))  # noqa: S307 (kfgen's own expression)
            return whole - sum(self.size(a) for a in self.f["arguments"] if a["name"] in self.skip)
        return sum(
            self.size(a)
            for a in [a for a in self.inputs if not a["unread"] and a["null"] != "result"]
            + self.outputs
        )


def forward_of(f, functions):
    """The forward of a gradient: where what it is given of it comes from."""
    return next(g for g in functions if g["name"] == f["forward"])


# ---- sizes -------------------------------------------------------------------------------------------------------


def of_rows(form, n, length):
    """[sizes] of n elements in rows of `length`: those of an op over rows, NCHW and NHWC where there are both."""
    rows = n // length
    queries = min(length, rows // HEADS)
    found = {
        "rows": [(rows, length)],
        "planes": [(rows // CHANNELS, CHANNELS, length)],
        "heads": [(rows // (HEADS * max(queries, 1)), HEADS, queries, length)],
        "groups": [
            (rows // GROUPS, 1, GROUPS, GROUPS * PARTS, length // PARTS),
            (rows // GROUPS, length // PARTS, GROUPS, GROUPS * PARTS, 1),
        ],
        "channels": [(BATCH, rows, length // BATCH), (length, rows, 1)],
    }[form]
    return [sizes for sizes in found if all(sizes)]


def length_of(f, sizes):
    """Elements of a row."""
    at = dict(zip(f["sizes"], sizes))
    if f["form"] == "groups":
        return at["length"] * at["channels"] // at["groups"] * at["inner"]
    return at["outer"] * at["inner"] if f["form"] == "channels" else sizes[-1]


def of_axis(text, n):
    """The sizes of "64 x * x 4096", where * is what is left of n elements."""
    words = text.split(" x ")
    left = n // math.prod(int(w) for w in words if w != "*")
    return tuple(left if w == "*" else int(w) for w in words)


def _count(f, size):
    """(elements, and the row length that the shape gives)."""
    if "shape" in size:
        return math.prod(size["shape"]), size["shape"][1]
    widths = [ITEM[a["dtype"]] for a in f["arguments"] if a.get("kind") in ("elem", "half")]
    return size["mib"] * 2**20 // min(widths), None


def _sizes(f, size, entry):
    """[(sizes, at)]: every shape that the function gets for one entry of `size`."""
    n, cols = _count(f, size)
    if f["family"] == "reduction":
        return [(of_axis(text, n), text) for text in entry.get("axes", ())]
    if f["family"] == "rows":
        lengths = [cols] if cols else entry.get("lengths", ())
        return [
            (sizes, f"{n // cols} x {cols}" if cols else length)
            for length in lengths
            for sizes in of_rows(f["form"], n, length)
        ]
    cols = cols or entry["cols"]
    if f["form"] == "flat":
        return [((n,), "")]
    if f["form"] == "rows":
        return [((n // cols, cols), "")]
    return [
        ((-(-n // (channels * inner)), channels, inner), "") for channels, inner in entry["images"]
    ]


# ---- sets --------------------------------------------------------------------------------------------------------


def _made(f, sizes, at, entry, data, peers, manifest):
    functions = manifest["functions"]
    skip = tuple(data["unasked"].get(f["op"], ()))
    if (
        not f["bwd"] and not entry.get("python")
    ):  # what a forward leaves for a gradient, as large as its result: peers write no such thing either
        skip += tuple(
            a["name"]
            for a in f["arguments"]
            if a.get("use") == "saved" and a["kind"] == "elem" and a["null"]
        )
    if entry["as_called"] and f["bwd"]:
        identity = data["identity_gradients"].get(f["op"], {})
        skip += tuple(identity.get(f["activation"], identity.get("any", ())))
    forward = forward_of(f, functions) if f["bwd"] else None
    scalars = (forward or f)["scalars"] | f["scalars"]
    scalars |= {k: v for k, v in data["scalars"].items() if k in scalars}
    scalars |= {
        name: n for name, n in zip(f["sizes"], sizes) if name == "groups"
    }  # which no tensor's shape says
    by_result = (
        f["bwd"]
        and f["statements_by_result"]
        and manifest["statements"][f["statements_by_result"]]["torch"]
    )
    any_ = (
        next((g for g in manifest["any"] if f["name"] in g["functions"].values()), None)
        if "any" in peers
        else None
    )
    return Case(
        f,
        tuple(sizes),
        tuple(peers),
        at,
        skip,
        entry["as_called"],
        scalars,
        forward,
        any_,
        entry.get("memory", False),
        by_result or None,
    )


def _taken(f, entry, lists):
    """Whether a set has this function."""
    if f["family"] not in entry["families"] or f["state"]:
        return False
    which = entry["functions"]
    if which != "all" and f["activation"] not in (
        ["none"] if which == "plain" else lists[which].get(f["op"], ())
    ):
        return False
    return set(f["dtypes"]) <= set(entry["dtypes"]) and (which != "plain" or len(f["dtypes"]) == 1)


def _peers(f, entry, lists, at):
    if "peer_lengths" in entry and at not in entry["peer_lengths"]:
        return []
    compiled = "compile" not in entry or f["activation"] in lists[entry["compile"]].get(f["op"], ())
    return [p for p in entry["peers"] if compiled or p != "compile"]


def _listed(entry, manifest, data):
    """The cases that a set names one by one."""
    by_name = {f[key]: f for f in manifest["functions"] for key in ("name", "cpu_name")}
    for name, *sizes in entry["cases"]:
        if name not in by_name:
            raise SystemExit(f"bench: {PATH.name} names {name}, which kf does not have")
        f = by_name[name]
        if len(sizes) != len(f["sizes"]):
            raise SystemExit(f"bench: {PATH.name}: {name} takes {', '.join(f['sizes'])}")
        at = (
            length_of(f, sizes)
            if f["family"] == "rows"
            else " x ".join(map(str, sizes))
            if f["family"] == "reduction"
            else ""
        )
        made = _made(f, sizes, at, entry, data, entry["peers"], manifest)
        if entry.get("python") == "both":
            gradient = next(
                g for g in manifest["functions"] if g["bwd"] and g["forward"] == f["name"]
            )
            made.gradient = _made(gradient, sizes, at, entry, data, (), manifest)
        made.python = entry.get("python", "")
        yield made


def read():
    """The tables of shapes.toml with what the families' own files add: cases to its sets, entries to its other tables."""
    data = tomllib.loads(PATH.read_text())
    for path in sorted(PATH.with_suffix("").glob("*.toml")):
        more = tomllib.loads(path.read_text())
        for name, entry in more.pop("set", {}).items():
            data["set"][name]["cases"] = data["set"][name].get("cases", []) + entry["cases"]
        for name, entries in more.items():
            data[name] |= entries
    return data


def load(name, manifest):
    """(the set's entry, its cases)."""
    data = read()
    if name not in data["set"]:
        raise SystemExit(
            f"bench: no set {name!r} in {PATH.name}; there are {', '.join(data['set'])}"
        )
    entry, lists, cases = (
        data["set"][name],
        data["functions"],
        {},
    )  # by key: two shapes of as many elements are one case to a function of n
    if "cases" in entry:
        return entry, list({c.key: c for c in _listed(entry, manifest, data)}.values())
    for f in manifest["functions"]:
        for size in (
            entry["size"] if _taken(f, entry, lists) and f["op"] not in data["left_out"] else ()
        ):
            if f["dtypes"][0] not in size.get("dtypes", entry["dtypes"]) or (
                size.get("sums") and not f["scratch"]
            ):
                continue
            for sizes, at in _sizes(f, size, entry):
                case = _made(f, sizes, at, entry, data, _peers(f, entry, lists, at), manifest)
                if case.outputs:
                    cases[case.key] = case
    return entry, list(cases.values())
