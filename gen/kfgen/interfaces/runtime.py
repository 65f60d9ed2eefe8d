# SPDX-License-Identifier: Apache-2.0
"""Functions on tensors (kf/runtime.h), one per op and direction, in one header or one per op.

They find dtype and activation at run time. A header holds the functions and the descriptions that
include/kf/runtime/call.h reads; both follow from the manifest.
"""

from dataclasses import dataclass, field

from kfgen.entries import compositions
from kfgen.interfaces import packed
from kfgen.model import limits, names, shapes
from kfgen.model.dtypes import ROUNDED
from kfgen.model.entries import ANY_ID
from kfgen.model.types import ACC, FIRST, INDEX_VARIABLE
from kfgen.paths import TEMPLATES, own_headers, version
from kfgen.render.environment import environment
from kfgen.render.layout import tidy
from kfgen.render.render import dependencies

LETTERS = {FIRST: "T", ACC: "ACC", INDEX_VARIABLE: "I"}  # KFI_RT_…; U: a further type variable
ALL = "kf/runtime/all.h"
FRONTEND = ("dim", "normalized_shape", "training")  # arguments of aliases in Python alone
# Rules in layout.h's terms.
COUNTS = {"before axis": "KFI_LAYOUT_BEFORE_AXIS", "rest": "KFI_LAYOUT_REST"}
DTYPES = ("f32", "f16", "bf16", "f64", "i32", "i64", "u8")  # same order as kf_dtype_t


def initializer(*values):
    """Returns a C initializer; tuples and lists in it are initializers too."""
    made = (initializer(*v) if isinstance(v, list | tuple) else str(v) for v in values)
    return f"{{{', '.join(made)}}}"


@dataclass
class Function:
    """Function of one op and direction.

    members: launchers of the manifest, for all activations and dtypes.
    activations: their activations, as described in the manifest.
    any: launchers whose activation is an argument, one per dtype tuple.
    """

    members: list
    activations: list = field(default_factory=list)
    any: list = field(default_factory=list)

    def __post_init__(self):
        self.first = self.members[0]
        self.op, self.bwd = self.first["op"], self.first["bwd"]
        self.has_act = "{act}" in self.op
        self.tensors = [a for a in self.first["arguments"] if "use" in a]
        self.stem = names.formula(self.op, "activation" if self.has_act else "none", self.bwd)
        self.name = f"kf_fused_{self.stem}"
        self.plain = (
            f"kf_fused_{names.formula(self.op, 'none', self.bwd)}"
            if any(f["activation"] == "none" for f in self.members)
            else None
        )
        self.lists = any(a["list"] for a in self.tensors)
        updates = any(a["role"] == "inout" for a in self.tensors)
        # All tensors determine sizes if the family has no rules.
        self.by_all = not self.first["axes"]
        self.axes = self.first["axes"] or {
            "axis": None,
            "sizes": shapes.named(self.first["sizes"]),
            "batch": None,
            "shaped_by": [],
        }
        self.order, self.axis = self.first["sizes"], self.axes["axis"]
        self.rules = {size: self.axes["sizes"][size] for size in self.order}
        self.groups = any("argument" in rule for rule in self.rules.values())
        self.chooses_axis = (
            shapes.BEFORE_AXIS in self.rules.values()
            and not self.groups
            and self.first["form"] == "axis"
        )
        self.dropout = self.first["dropout"]
        # Blocks of strided tensors are copied before and after a call; tensors that it reads and
        # overwrites are not.
        self.in_blocks = not updates
        self.any_order = (
            self.first["permutable"]
            and self.in_blocks
            and not any(a["summed_over"] for a in self.tensors)
        )
        self.several = self.axes["shaped_by"]
        self.shaped_by = self._shaped_by()
        self.var = {a["name"]: a["var"] for a in self.tensors}
        self.ids = {a["name"]: a["id"] for a in self.activations}
        self.betas = [a["name"] for a in self.arguments("beta")]
        self.codes = []  # codes of all extents that are expressions
        self.beside = shapes.places(self.order, packed.beside(self.first))
        self.operands = [self.operand(a) for a in self.tensors]

    def _shaped_by(self):
        """Tensor that determines the sizes.

        It is elementwise and, if possible, read with every activation. If several tensors determine
        the sizes, it is the one that others are compared with.
        """
        if self.by_all or self.lists:
            return self.tensors[0]
        if self.several:
            return next(a for a in self.tensors if a["name"] == self.several[-1])
        whole = sorted(
            (
                a
                for a in self.tensors
                if a["role"] in ("in", "inout") and a["kind"] in ("elem", "half")
            ),
            key=lambda a: a["kind"] == "half",
        )
        return next((a for a in whole if not self.unread(a) and not self.missing(a)), whole[0])

    def batch(self):
        """Index of the batch size, or -1.

        Slices of a batch are independent: no sum runs over them, and no dropout mask depends on an
        element's index.
        """
        size = self.axes["batch"]
        apart = (
            size
            and self.in_blocks
            and not self.dropout
            and all(a["shape"][:1] == [size] for a in self.tensors if a["role"] != "in")
        )
        return self.order.index(size) if apart else -1

    def arguments(self, *roles):
        return [a for a in self.first["arguments"] if a["role"] in roles]

    @property
    def integers(self):
        """Options and integers: the numbers of a call that are no parameters of their own, as the
        number of tensors of lists is.
        """
        counts = [a["name"] for a in self.arguments("count")]
        found = packed.numbers(self.first)[len(self.order) :]
        return [name for name in found if name not in counts]

    @property
    def defaults(self):
        """Defaults of the integers, for those that are 0; empty if none has one."""
        found = packed.defaults(self.first)
        return [found.get(name, 0) for name in self.integers] if found else []

    @property
    def scalars(self):
        return [a["name"] for a in self.arguments("scalar")]

    def unread(self, tensor):
        """Indices of the activations that do not read the tensor."""
        at = [a["name"] for a in self.first["arguments"]].index(tensor["name"])
        return sorted({self.number(f) for f in self.members if f["arguments"][at].get("unread")})

    def missing(self, tensor):
        """Indices of the activations with which the tensor may be NULL although it is read."""
        at = [a["name"] for a in self.first["arguments"]].index(tensor["name"])
        return sorted(
            {
                self.number(f)
                for f in self.members
                if f["arguments"][at]["null"] not in ("", "unread")
            }
        )

    def number(self, f):
        return [a["name"] for a in self.activations].index(f["activation"])

    def parameters(self, act=True, with_scalars=True):
        """Returns [(type, name)] of the function's parameters."""
        found = [("kf_context_t *", "ctx")]
        found += [(self.pointer(a), a["name"]) for a in self.tensors]
        found += [("int64_t ", "count")] if self.lists else []
        found += [("int ", "dim")] if self.chooses_axis else []
        found += [("int64_t ", "groups")] if self.groups else []
        found += [("int64_t ", name) for name in self.integers] + [
            ("double ", name) for name in self.scalars
        ]
        if self.has_act and act:
            found += [("kf_activation_t ", "act")] + (
                [("const double *", "act_scalars")] if with_scalars else []
            )
        found += [("double ", name) for name in self.betas]
        found += (
            [("double ", "p"), ("uint64_t ", "seed"), ("uint64_t ", "offset")]
            if self.dropout
            else []
        )
        return [*found, ("kf_stream_t *", "stream")]

    @staticmethod
    def pointer(a):
        """C type of a tensor argument; of a list, that of its array of tensors."""
        one = "const kf_tensor_t *" if a["role"] == "in" else "kf_tensor_t *"
        return f"{one}const *" if a["list"] else one

    def declared(self, act=True, with_scalars=True):
        return ", ".join(f"{kind}{name}" for kind, name in self.parameters(act, with_scalars))

    def passed(self, act="act", scalars="NULL"):
        """Arguments that a function with fewer parameters passes to the one with all."""
        return ", ".join(
            {"act": act, "act_scalars": scalars}.get(name, name) for _, name in self.parameters()
        )

    def operand(self, a):
        """The fields of kfi_rt_operand."""
        values = [*self.order, *self.integers]
        known = [] if a["list"] else a["extents"]
        extents = shapes.fields(known, self.order, values, self.codes)
        fields = next((s["fields"] for s in self.arguments("strides")), [])
        levels = [fields.index(name) for name in a["strides"]]
        assert levels == list(range(levels[0], levels[0] + len(levels))) if levels else True, (
            self.name,
            a["name"],
        )
        letters = LETTERS | dict.fromkeys(further(self.first), "U")
        var = self.var[a["name"]]
        var = f"KFI_RT_{letters[var]}" if var in letters else f"KFI_RT_FIXED + KF_{var.upper()}"
        missing, mask = (
            sum(1 << i for i in numbers) for numbers in (self.missing(a), self.unread(a))
        )
        values = (
            f'"{a["name"]}"',
            int(a["role"] != "in"),
            var,
            int(a["accumulated"]),
            initializer(len(extents), len(levels), levels[0] if levels else 0, extents or [(0,)]),
            f"{missing:#x}",
            f"{mask:#x}",
        )
        return initializer(*values)

    def shaping(self):
        """Indices of the tensors that determine the sizes."""
        names = [a["name"] for a in self.tensors]
        found = self.several or [self.shaped_by["name"]]
        return [] if self.by_all or self.lists else [names.index(name) for name in found]

    def layout_rules(self):
        """The fields of kfi_layout_rules."""
        counts, divides = [], []
        for rule in self.rules.values():
            count = rule.get("dims", "KFI_LAYOUT_ARGUMENT")
            counts.append(COUNTS.get(count, count))
            divides.append(self.order.index(rule["divides"]) if "divides" in rule else -1)
        joined = "ALWAYS" if self.groups else "ALONE" if self.chooses_axis else "NEVER"
        return initializer(
            len(counts),
            counts or [0],
            divides or [0],
            shapes.least(self.axis),
            int(shapes.BEFORE_AXIS in self.rules.values()),
            int(self.by_all),
            f"KFI_LAYOUT_{joined}",
            f"kfi_rt_codes_{self.stem}" if self.codes else "NULL",
            f"kfi_rt_defaults_{self.stem}" if self.defaults else "NULL",
            f"kfi_rt_beside_{self.stem}" if self.beside else "NULL",
        )

    def there(self, f):
        """Condition that the program includes the launcher's activation and element dtypes."""
        return (
            f"KFI_RT_HAS({self.ids[f['activation']]}) && {self.takes(f)}"
            if self.has_act
            else self.takes(f)
        )

    def takes(self, f):
        dtypes = {v["dtype"] for v in f["variables"] if v["name"] in (FIRST, *further(f))}
        return f"KFI_RT_TAKES({sum(1 << DTYPES.index(d) for d in dtypes):#x})"

    def description(self):
        """Fields of kfi_rt_op after its tables."""
        entries, shaping = f"kfi_rt_entries_{self.stem}", self.shaping()
        refuses = self.first["empty"] == "error" and not self.bwd
        return ", ".join(
            str(x)
            for x in (
                len(self.tensors),
                len(self.activations),
                f"(int)(sizeof {entries} / sizeof *{entries}) - 1",
                len(self.integers),
                len(self.scalars),
                self.layout_rules(),
                len(shaping),
                initializer(*(shaping or [0])),
                self.tensors.index(self.shaped_by),
                -1 if self.axis is None else self.axis,
                self.order.index("axis") if refuses else -1,
                int(self.any_order),
                int(self.dropout),
                int(bool(self.betas)),
                int(self.chooses_axis),
                int(self.groups),
                self.batch(),
                int(self.lists),
            )
        )

    def any_of(self, f):
        """Launcher with a run-time activation that replaces this one on a GPU."""
        return next(g for g in self.any if g["dtypes"] == f["dtypes"])

    @property
    def has_any_strides(self):
        """True if a GPU has kernels of arbitrary strides (runtime_activation.has_any_strides)."""
        return bool(self.any) and self.any_order

    def any_strides(self, f):
        """The call of such a function for any activation."""
        others = f | {
            "arguments": [
                a for a in f["arguments"] if a["role"] not in ("activation", "activation_scalars")
            ]
        }
        name = f"kfi_run_{f['name'].removeprefix('kf_')}_apart"
        return f"{name}<{ANY_ID}>({packed.words(others, typed=True)}, q, a, kfi_of_act, d)"

    def act_scalars(self, f):
        """Array of the activation's scalars, which follow the op's. Its length is the maximum."""
        ctype = (
            next(a["ctype"] for a in f["arguments"] if a["role"] == "activation_scalars")
            .removeprefix("const ")
            .removesuffix(" *")
        )
        first = len(self.scalars)
        values = ", ".join(f"({ctype})s[{first + i}]" for i in range(limits.ACT_SCALARS))
        return f"const {ctype} kfi_of_act[] = {{{values}}};"

    def entry(self, f):
        known = {v["name"]: v["dtype"] for v in f["variables"]}
        of_t, other = known[FIRST], [known[name] for name in further(f)]
        dtypes = [of_t, other[0] if other else of_t, known.get(INDEX_VARIABLE, of_t)]
        both = (("cpu_name", "cpu_workspace"), ("name", "workspace"))
        cpu, cuda = (
            f"kfi_rt_run_{f[name]}, {'kfi_rt_space_' + f[name] if f[space] else 'NULL'}"
            for name, space in both
        )
        apart = f"kfi_rt_apart_{self.any_of(f)['name']}" if self.has_any_strides else "NULL"
        of_tensors, of_name = (
            ", ".join(f"KF_{d.upper()}" for d in words) for words in (dtypes, f["dtypes"])
        )
        cuda, apart = (cuda, apart) if "cuda" in f["backends"] else ("NULL, NULL", "NULL")
        return (
            f'{{&kfi_rt_op_{self.stem}, "{f["name"]}", {{{of_tensors}}}, {len(f["dtypes"])}, '
            f"{{{of_name}}}, {self.number(f)}, KFI_RT_ON_CPU({cpu}, NULL), "
            f"KFI_RT_ON_GPU({cuda}, {apart})}}"
        )


def spellings(f, known):
    """Names by which kf_op_lookup finds a function, the main one first."""
    own = [f.plain.removeprefix("kf_fused_")] if f.plain else []
    own += [f.stem] + [
        name.removeprefix("kf_fused_") for name, of, act in known if of is f and not act
    ]
    return list(dict.fromkeys(own))


def further(f):
    """Type variables of a function besides T, the index dtype and sums."""
    return [v["name"] for v in f["variables"] if v["name"] not in LETTERS]


def takes_tensors(f):
    """True if a function on tensors may call the launcher.

    Left out are:
    - `_state` launchers, for programs that replay a graph and call launchers directly
    - variants of other launchers (`variant`)
    - TF32 products, whose tensors have the dtypes of the f32 launcher
    - launchers of three type variables or more
    - launchers of lists beside single tensors, or of lists that may be NULL
    """
    given = [(a["list"], a["null"]) for a in f["arguments"] if "use" in a]
    if any(is_list for is_list, _ in given) and set(given) != {(True, "")}:
        return False
    variant = f["state"] or f["variant"] or not ROUNDED.keys().isdisjoint(f["dtypes"])
    return not variant and len(further(f)) <= 1


def functions(manifest):
    """Functions on tensors, in the order of the manifest."""
    groups = {}
    for f in manifest["functions"]:
        if takes_tensors(f):
            groups.setdefault((f["op"], f["bwd"]), []).append(f)
    known = {a["name"]: a for a in manifest["activations"]}
    of_any = {}
    for f in manifest["any"]:
        if takes_tensors(f):
            of_any.setdefault((f["op"], f["bwd"]), []).append(f)
    return [
        Function(
            members,
            [known[name] for name in dict.fromkeys(f["activation"] for f in members)],
            of_any.get(key, []),
        )
        for key, members in groups.items()
    ]


def aliases(manifest, made):
    """Returns [(name, function, True if it takes an activation)] of aliases.

    An alias must have the same arguments as the function.
    """
    named = {f.op: f for f in made if not f.bwd}
    spelled = {a["name"].removeprefix("fused_"): a for a in manifest["aliases"]}
    taken, found = {f.name for f in made} | {f.plain for f in made}, []
    for name, a in spelled.items():
        f = named.get(a["op"])
        inputs = [t["name"] for t in f.tensors if t["role"] == "in"] if f else []
        same = (
            f
            and [x["of"] for x in a["arguments"] if x["of"] not in FRONTEND] == inputs
            and a["activation"] == "none"
            and not a["defaults"]
        )
        if same and f"kf_fused_{name}" not in taken:
            found.append((f"kf_fused_{name}", f, False))
            others = (x for x in manifest["activations"] if x["name"] != "none")
            if f.has_act and any(f"{name}_{x['name']}" in spelled for x in others):
                found.append((f"kf_fused_{name}_activation", f, True))
    return found


def render(manifest, name):
    """Returns the header's text.

    Args:
        name: file name, from which the include guard follows.
    """
    made = functions(manifest)
    return _header(manifest, name, made, aliases(manifest, made), compositions.of(made))


def each(manifest):
    """Returns {path below an include directory: text}: kf/runtime/<op>.h for each op, and all.h."""
    made, found, own = functions(manifest), {}, own_headers()
    known = aliases(manifest, made)
    for op in dict.fromkeys(f.op for f in made):
        name = f"kf/runtime/{names.stem(op)}.h"
        if name in own or name == ALL:
            raise ValueError(
                f"--each: {name} is a header of kf's own: rename the op, or leave it out with --ops"
            )
        of_op = [f for f in made if f.op == op]
        found[name] = _header(manifest, name, of_op, [a for a in known if a[1] in of_op], [])
    for c in compositions.of(made):
        texts = {"file": c.path, "guard": _guard(c.path), "c": c, "version": version()}
        template = environment().get_template("runtime/composition.h.j2")
        found[c.path] = tidy(template.render(**texts))
    return found | {
        ALL: tidy(
            environment()
            .get_template("runtime/all.h.j2")
            .render(file=ALL, headers=list(found), version=version())
        )
    }


def inputs(selection):
    """Returns the files that these headers depend on."""
    return dependencies(selection, [*(TEMPLATES / "runtime").glob("*.j2"), compositions.PATH])


def _guard(name):
    return "".join(c if c.isalnum() else "_" for c in name).upper()


def _header(manifest, name, made, known, composed):
    env = environment()
    texts = {
        "file": name,
        "spellings": {f.name: spellings(f, known) for f in made},
        "guard": _guard(name),
        "functions": made,
        "compositions": composed,
        "aliases": known,
        "headers": list(dict.fromkeys(m["header"] for f in made for m in f.members)),
        "any_headers": list(
            dict.fromkeys(g["header"] + ".apart" * f.has_any_strides for f in made for g in f.any)
        ),
        "activations": manifest["activations"],
        "words": packed.words,
        "shape_lines": packed.shape_lines,
        "space": packed.space,
        "version": version(),
        "abi": manifest["abi_version"],
    }
    return tidy(env.get_template("runtime/ops.h.j2").render(**texts))
