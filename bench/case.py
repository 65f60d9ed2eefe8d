# SPDX-License-Identifier: Apache-2.0
"""Makes a list of cases, one function at one shape, from the manifest, shapes.toml and
families/<family>/shapes.toml. Needs neither a GPU nor PyTorch."""

import dataclasses
import math
import pathlib
import tomllib

import size_rules

ITEM = {"f32": 4, "f16": 2, "bf16": 2, "f64": 8, "i32": 4, "i64": 8, "u8": 1}
PATH = pathlib.Path(__file__).with_name("shapes.toml")
# Extents of batches, heads and groups: typical numbers of channels, equal for every function.
CHANNELS, HEADS, GROUPS, PARTS, BATCH = 64, 16, 32, 8, 32


@dataclasses.dataclass
class Case:
    f: dict  # the function's entry of the manifest
    sizes: tuple
    peers: tuple = ()
    at: object = ""  # column of a table: elements per row, or a shape as text
    skip: tuple = ()  # tensors that are not wanted: NULL
    shared: bool = False  # gradients that are proven equal share one pointer
    scalars: dict = dataclasses.field(default_factory=dict)
    forward: dict = None  # a gradient's forward: its manifest entry
    any: dict = None  # its variant with run-time activation
    memory: bool = False  # whether to report peak memory
    by_result: list = None  # a gradient from the result: torch statements
    python: str = ""  # called through Python: "forward", or "both", with its gradient
    gradient: object = None  # the gradient's case for "both"

    @property
    def key(self):
        return f"{self.f['name']} {'x'.join(map(str, self.sizes))}"

    @property
    def variant(self):
        """ "NHWC" if the channels of a pixel are contiguous, else ""."""
        return "NHWC" if self.f["form"] in ("groups", "channels") and self.sizes[-1] == 1 else ""

    @property
    def inputs(self):
        return [a for a in self.f["arguments"] if a["role"] == "in" and a["name"] not in self.skip]

    @property
    def outputs(self):
        """Written arguments; a gradient that shares another's memory is listed once."""
        return [
            a
            for a in self.f["arguments"]
            if a["role"] in ("out", "sum")
            and a["name"] not in self.skip
            and not (self.shared and a["same_as"])
        ]

    @property
    def results(self):
        """Outputs that PyTorch's forward returns, in order: those that may not be NULL."""
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
        """Inputs whose gradients are wanted."""
        written = {
            a["name"]
            for a in self.f["arguments"]
            if a["role"] in ("out", "sum") and a["name"] not in self.skip
        }
        return [a["name"] for a in self.inputs if f"d{a['name']}" in written]

    @property
    def elements(self):
        """Elements of a result, or of the largest tensor with rows if no tensor has all sizes."""
        if not self.f["axes"] or self.f["axes"]["shaped_by"]:
            return max(
                math.prod(self.shape(a))
                for a in self.f["arguments"]
                if a.get("shape", [""])[0] == self.f["sizes"][0]
            )
        return math.prod(n for name, n in zip(self.f["sizes"], self.sizes) if name != "groups")

    def shape(self, a):
        """Shape of a tensor."""
        return size_rules.shape(a, dict(zip(self.f["sizes"], map(int, self.sizes))))

    def size(self, a):
        return math.prod(self.shape(a)) * ITEM[a["dtype"]]

    @property
    def bytes(self):
        """Bytes of every tensor of the call, once; the manifest says how much of a gathered one."""
        if not self.f["axes"] or self.f["axes"]["shaped_by"]:
            at = dict(zip(self.f["sizes"], self.sizes))
            bytes_of = self.f["cost"]["bytes"].replace("/", "//")  # divides as in C
            whole = eval(bytes_of, {}, at)  # noqa: S307 (kfgen's own expression)
            return whole - sum(self.size(a) for a in self.f["arguments"] if a["name"] in self.skip)
        return sum(
            self.size(a)
            for a in [a for a in self.inputs if not a["unread"] and a["null"] != "result"]
            + self.outputs
        )


def forward_of(f, functions):
    """Returns the forward of a gradient, which writes its saved inputs."""
    return next(g for g in functions if g["name"] == f["forward"])


# ---- sizes ----


def of_rows(form, n, length):
    """Sizes of an op over rows: n elements in rows of `length`; NCHW and NHWC if both exist."""
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
    """Returns the elements of a row."""
    at = dict(zip(f["sizes"], sizes))
    if f["form"] == "groups":
        return at["length"] * at["channels"] // at["groups"] * at["inner"]
    return at["outer"] * at["inner"] if f["form"] == "channels" else sizes[-1]


def of_axis(text, n):
    """Sizes of "64 x * x 4096"; * fills up to n elements."""
    words = text.split(" x ")
    left = n // math.prod(int(w) for w in words if w != "*")
    return tuple(left if w == "*" else int(w) for w in words)


def _count(f, size):
    """Returns (elements, row length or None)."""
    if "shape" in size:
        return math.prod(size["shape"]), size["shape"][1]
    widths = [ITEM[a["dtype"]] for a in f["arguments"] if a.get("kind") in ("elem", "half")]
    return size["mib"] * 2**20 // min(widths), None


def _sizes(f, size, entry):
    """Returns [(sizes, at)]: the shapes of a function for one entry of `size`."""
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


# ---- sets ----


def _made(f, sizes, at, entry, data, peers, manifest):
    functions = manifest["functions"]
    skip = tuple(data["unasked"].get(f["op"], ())) + tuple(entry.get("without", ()))
    if not f["bwd"] and not entry.get(
        "python"
    ):  # saved tensors as large as the result, which peers do not write
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
    given = data["scalars"] | entry.get("scalars", {})
    scalars |= {k: v for k, v in given.items() if k in scalars}
    scalars |= {
        name: n for name, n in zip(f["sizes"], sizes) if name == "groups"
    }  # no tensor's shape has it
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
    """Returns whether a set has this function."""
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
    """Yields the cases that a set lists by name."""
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
    """Reads shapes.toml and adds the families' cases and entries."""
    data = tomllib.loads(PATH.read_text())
    for path in sorted((PATH.parent / "families").glob("*/shapes.toml")):
        more = tomllib.loads(path.read_text())
        for name, entry in more.pop("set", {}).items():
            before = data["set"].get(name, {})
            data["set"][name] = before | entry
            if "cases" in before and "cases" in entry:
                data["set"][name]["cases"] = before["cases"] + entry["cases"]
        for name, entries in more.items():
            data[name] = data.get(name, {}) | entries
    return data


def load(name, manifest):
    """Returns (entry of the set, its cases)."""
    data = read()
    if name not in data["set"]:
        raise SystemExit(
            f"bench: no set {name!r} in {PATH.name}; there are {', '.join(data['set'])}"
        )
    entry, lists, cases = (
        data["set"][name],
        data["functions"],
        {},
    )  # keyed: two shapes with equal n are one case of a flat function
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
