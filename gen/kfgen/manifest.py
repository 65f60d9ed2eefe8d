# SPDX-License-Identifier: Apache-2.0
"""The list of public functions that tests, benchmarks, documentation and frontends read."""

from kfgen import abi, aliases, chosen, contract, formulas, names
from kfgen.activation import bwd_reads_x
from kfgen.dtypes import DTYPE, FLOAT_DTYPES, INT_DTYPES

BYTES_NOTE = "bytes: per element of the result, every tensor once; row tensors are not counted"
EPSILON = {"f32": 2.0**-23, "f64": 2.0**-52}  # of what is computed in


def null(k, stream, act):
    """What a NULL pointer means: nothing that may be ("" then); the number `absent`; that it is not read, or not written; of the activation's
    result that the gradient is by the inputs, and of those that it is by the result."""
    if stream.role != "in":
        return "" if stream.required else "skipped"
    if k.unread(stream, act):
        return "unread"
    if k.by(act) and stream.reads in ("result", "act"):
        return "inputs" if stream.reads == "result" else "result"
    return "" if stream.absent is None else "absent"


def index(k, stream):
    """Of an operand that is the number of a column: what it may be, and what comes of any other."""
    below = k.below(stream) if stream.role == "in" else None
    return below and {"least": 0, "below": below, "outside": "no gradient" if k.bwd else "NaN"}


def tensor(k, stream, act, backward):
    """A tensor argument; docs/manifest.md says what each field is. backward: the kernel of the gradients, if there is one."""
    laid = (
        [stream.name + level for level in k.levels_of(stream.name)]
        if stream.name in k.strided
        else []
    )
    summed = stream.of and stream.role != "in" and stream.kind not in k.family.whole
    return {
        "name": stream.name,
        "role": stream.role,
        "use": stream.use,
        "of": stream.of,
        "kind": stream.kind,
        "shape": k.shape(stream),
        "dtype": stream.dtype.word,
        "var": stream.var,
        "null": null(k, stream, act),
        "unread": stream.role == "in" and k.unread(stream, act),
        "absent": stream.absent,
        "same_as": stream.same_as,
        "unchanged": stream.unchanged,
        "place_of": stream.place_of,
        "in_place": contract.in_place(k, stream) if stream.role != "in" else [],
        "strides": laid,
        "broadcast": bool(laid) and stream.role == "in",
        "gradient": next((s.name for s in backward.streams if s.of == stream.name), "")
        if backward
        else "",
        "summed_over": k.summed_extents(stream) if summed else [],
        "accumulated": bool(stream.role != "in" and k.betas and k.accumulated(stream)),
        "index": index(k, stream),
        "memory": "device",
        "positive": any(o.name == stream.name and o.positive for o in k.op.operands),
    }


# What a NULL pointer means that is no tensor's.
NULL = {"strides": "dense", "workspace": "no bytes", "activation_scalars": "the defaults"}


def value(k, act, argument):
    """Any other argument."""
    said = (
        (k.op.said | act.said).get(argument.name)
        if argument.role in ("scalar", "integer", "act_scalar")
        else None
    )
    found = {"name": argument.name, "role": argument.role, "ctype": argument.ctype.strip()}
    if said:
        found |= {
            "default": said.default,
            "least": said.least,
            "most": said.most,
            "unread": argument.name in k.unread_scalars,
        }
    if argument.role == "beta":
        found |= {"default": 0.0, "least": None, "most": None, "unread": False}
    if argument.role == "strides":
        found |= {"struct": k.stride_struct, "fields": k.stride_fields}
    if argument.role == "size":
        found |= {"least": 1 if k.refuses and argument.name == "axis" else 0}
    if "*" in argument.ctype:
        found |= {
            "memory": "host" if argument.role in ("strides", "activation_scalars") else "device",
            "null": NULL.get(argument.role, ""),
        }
    return found


def variables(k):
    """The type variables of a function: what each is and what it is of."""
    found = [{"name": "T", "dtype": k.dtype.word, "of": "elements"}]
    if k.op.types not in ("one", "gradients"):
        found.append(
            {
                "name": "U",
                "dtype": k.second.word,
                "of": "weights" if k.op.types == "weights" else "results",
            }
        )
    elif k.second is not k.dtype:
        found.append({"name": "U", "dtype": k.second.word, "of": k.family.second})
    found += (
        [{"name": "I", "dtype": k.index_dtype.word, "of": "whole numbers"}] if k.op.indexed else []
    )
    return found + (
        [{"name": "acc", "dtype": k.dtype.acc.word, "of": "sums and values of rows"}]
        if any(s.var == "acc" for s in k.streams)
        else []
    )


def tolerance(k, act):
    """How far a result may be from the exact one: None where it is exact, or rounded once."""
    compute = k.dtype.compute
    if k.op.types == "pairs" or compute not in EPSILON:
        return None
    return {
        "factor": max(act.ulp[compute], 2.0),
        "epsilon": EPSILON[compute],
        "ulp": int(k.dtype.size < 4),
    }


def autocast(k):
    """What a framework that chooses dtypes for its user gives it: "low" to products, the dtype of 2 bytes that it works with; "float32" to sums and
    losses; tensors of several dtypes in the widest ("promote"); else what it is given ("same")."""
    if k.family.autocast:
        return k.family.autocast
    if k.dtypes[0] not in FLOAT_DTYPES or k.op.types == "pairs":
        return "same"
    if k.graph.levels is not None or k.op.reduced:
        return "float32"
    return "promote" if sum(s.var == "T" and s.use != "gradient" for s in k.inputs) > 1 else "same"


def saves(launcher, backward):
    """What the backward reads of its forward's tensors."""
    if not backward:
        return []
    return [
        s.name for s in backward.inputs if s.use != "gradient" and backward.reads(s, launcher.act)
    ]


def saves_by_result(launcher, backward):
    """The same where its gradient is by the activation's result; None if there is no such gradient."""
    if not backward or not backward.by(launcher.act):
        return None
    return [
        s.name for s in backward.inputs if s.use != "gradient" and s.reads in ("always", "result")
    ]


def axes(k):
    """How tensors of any number of dimensions become the sizes: (families/family.py). None: their shapes alone do not say them all."""
    if k.form not in k.family.axes:
        return None
    axis, of = k.family.axes[k.form]
    batch = next((s for s, what in of.items() if what in ("all", "before", "all but three")), None)
    return {"axis": axis, "sizes": of, "batch": batch, "shaped_by": list(k.shaped_by)}


def cost(k, tensors):
    """Bytes of every tensor once and operations, as expressions of the sizes; by the activation's result, where the gradient may be."""
    touched = {s.name: k.touched(s) for s in k.inputs + k.outputs}
    moved = [
        (" * ".join(touched[t["name"]]), DTYPE[t["dtype"]].size)
        for t in tensors
        if not t["unread"] and t["null"] != "result"
    ]
    shapes = {}
    for shape, size in moved:
        shapes[shape] = shapes.get(shape, 0) + size
    return {
        "bytes": " + ".join(f"{size} * {shape}" for shape, size in shapes.items()),
        "flops": " * ".join([str(k.flops), *k.extents]) + (f" + {k.work}" if k.work else ""),
    }


def of_kernel(k):
    """What its functions have in common."""
    return {
        "variables": variables(k),
        "axes": axes(k),
        "formula": contract.formulas(k),
        "flops": k.flops,
        "workspace_arguments": k.sizes if k.has_workspace else [],
        "scratch": k.scratch,
        "autocast": autocast(k),
        "permutable": k.permutable,
        "backends": list(k.backends),
        "architecture": k.family.architecture,
    }


def backward_of(k):
    return k if k.bwd else k.family.backward(k.op, k.dtypes) if k.has_backward else None


def function(launcher, user=None, common=None, backward=None):
    """backward: the kernel of the gradients, where the caller has it."""
    k, act = launcher.kernel, launcher.act
    backward = backward or backward_of(k)
    folder = names.folder(user if user and not (k.op.builtin and act.builtin) else None)
    tensors = [tensor(k, s, act, backward) for s in k.inputs + k.outputs]
    by_name = {t["name"]: t for t in tensors}
    arguments = [
        by_name[a.name] if a.role in ("in", "out") else value(k, act, a) for a in launcher.arguments
    ]
    defaults = k.op.scalars | act.scalars | dict.fromkeys(k.betas, 0.0)
    moved = [
        s
        for s in k.inputs + k.outputs
        if not s.is_row and not by_name[s.name]["unread"] and by_name[s.name]["null"] != "result"
    ]
    other = names.function(k.op.pattern, act.name, k.forward_dtypes, not k.bwd, launcher.state)
    return {
        "name": launcher.name,
        "cpu_name": launcher.cpu_name,
        "op": k.op.pattern,
        "activation": act.name,
        "base": names.fill(k.op.pattern, act.name),
        "family": k.family.name,
        "layout": k.layout,
        "form": k.form,
        "header": f"{folder}/{names.stem(k.op.pattern)}",
        "dtypes": list(k.dtypes),
        "bwd": k.bwd,
        "forward": other if k.bwd else launcher.name,
        "backward": launcher.name if k.bwd else other if k.has_backward else None,
        "saves": saves(launcher, backward),
        "saves_by_result": saves_by_result(launcher, backward),
        "rising": [s for s in act.scalars if s in act.rising]
        if backward and backward.by(act)
        else [],
        "errors": contract.codes(k, act),
        "formula_by_result": contract.formulas(k, True) if k.by(act) else None,
        "statements": names.formula(k.op.pattern, act.name, k.bwd),
        "statements_by_result": names.formula(k.op.pattern, act.name, k.bwd, k.by(act))
        if k.by(act)
        else None,
        "tolerance": tolerance(k, act),
        "stages": k.cuda.stages(launcher) if "cuda" in k.backends else [],
        "state": launcher.state,
        "dropout": k.dropout,
        "sizes": k.sizes,
        "arguments": arguments,
        "scalars": {s: defaults[s] for s in [*k.integers, *k.scalars, *act.scalars, *k.betas]},
        "workspace": launcher.workspace if k.has_workspace else None,
        "cpu_workspace": launcher.cpu_workspace if k.has_workspace else None,
        "signature": _signature(launcher),
        "cpu_signature": f"kf_result_t {launcher.cpu_name}({launcher.cpu_parameters})",
        "cost": cost(k, tensors),
        "bytes": sum(s.dtype.size * k.per_element(s) for s in moved),
        "integer": k.dtypes[0] in INT_DTYPES and k.op.types == "one",
        "reads_x": bwd_reads_x(act),
        "empty": k.op.empty,
        "source": k.op.source,
        "launchers": names.launchers(user if folder != names.folder() else None, k.dtypes[0])
        if "cuda" in k.backends
        else "",
        "since": k.op.since,
        **(common or of_kernel(k)),
    }


def any_activation(k, members, user):
    """The functions of a kernel whose activation is an argument. members: the kernel's own functions, as the manifest has them."""
    found, one = [], chosen.kernel(k)
    for launcher in one.launchers:
        of = {f["activation"]: f for f in members if f["state"] == launcher.state}
        first = next(iter(of.values()))
        header = f"{names.folder_of_chosen(user if any(not a.builtin for a in k.acts) or not k.op.builtin else None)}/{names.stem(k.op.pattern)}"
        tensors = {}
        for alike in zip(*([a for a in f["arguments"] if "kind" in a] for f in of.values())):
            said = {a["null"] for a in alike}
            tensors[alike[0]["name"]] = alike[0] | {
                "null": said.pop() if len(said) == 1 else "activation",
                "unread": all(a["unread"] for a in alike),
            }
        others = {a["name"]: a for a in first["arguments"] if "kind" not in a}
        arguments = [
            tensors.get(a.name) or others.get(a.name) or value(one, launcher.act, a)
            for a in launcher.arguments
        ]
        found.append(
            {
                "name": launcher.name,
                "cpu_name": launcher.cpu_name,
                "header": header,
                "functions": {act: f["name"] for act, f in of.items()},
                "signature": f"kf_result_t {launcher.name}({launcher.cuda_parameters})",
                "cpu_signature": f"kf_result_t {launcher.cpu_name}({launcher.cpu_parameters})",
                "workspace": launcher.workspace if k.has_workspace else None,
                "cpu_workspace": launcher.cpu_workspace if k.has_workspace else None,
                "stages": one.cuda.stages(launcher),
                "arguments": arguments,
                **{
                    key: first[key]
                    for key in (
                        "op",
                        "family",
                        "form",
                        "layout",
                        "dtypes",
                        "variables",
                        "bwd",
                        "state",
                        "dropout",
                        "sizes",
                        "workspace_arguments",
                        "scratch",
                    )
                },
            }
        )
    return found


def statements(kernels):
    """{what functions have as `statements`: {library: lines}}: the same for all dtypes."""
    found = {}
    for k in kernels:
        for act in k.acts:
            for by in (False, True) if k.by(act) else (False,):
                key = names.formula(k.op.pattern, act.name, k.bwd, by)
                if key not in found:
                    found[key] = {
                        library: k.family.statements(k, act, library, by)
                        for library in formulas.LIBRARIES
                    }
    return found


def signatures(selection):
    """What build has as `signature` of each of its functions."""
    return [_signature(launcher) for k in selection.all_kernels() for launcher in k.launchers]


def forwards(selection, wanted):
    """Of the forwards of each of these (op, activation) the first one that build has, made alone."""
    found = {}
    for op, act in wanted:
        kernels = selection.kernels(op)
        first = next(
            x for k in kernels if not k.bwd for x in k.launchers if x.act is act and not x.state
        )
        found[op.pattern, act.name] = function(
            first,
            None,
            None,
            next((k for k in kernels if k.bwd and k.dtypes == first.kernel.dtypes), None),
        )
    return list(found.values())


def _signature(launcher):
    return f"kf_result_t {launcher.name}({launcher.cuda_parameters})"


def build(selection, user=None):
    """The whole manifest of a selection, in the order of the spec. user: the stem of spec files rendered beside the rest."""
    kernels = selection.all_kernels()
    backward = {(k.op.pattern, k.dtypes): k for k in kernels if k.bwd}
    found = [
        function(launcher, user, common, backward.get((k.op.pattern, k.dtypes)))
        for k in kernels
        for common in [of_kernel(k)]
        for launcher in k.launchers
    ]
    own = {}
    for f in found:
        own.setdefault((f["op"], tuple(f["dtypes"]), f["bwd"]), []).append(f)
    of_any = [
        f
        for k in kernels
        if chosen.has(k)
        for f in any_activation(k, own[k.op.pattern, k.dtypes, k.bwd], user)
    ]
    activations = [
        {
            "name": a.name,
            "id": a.id,
            "brief": a.brief,
            "scalars": a.scalars,
            "ulp": a.ulp,
            "rounding": a.rounding,
            "source": a.source,
            "budget": a.budget,
        }
        for a in selection.activations
    ]
    ops = [
        {"pattern": op.pattern, "brief": op.brief, "source": op.source, "since": op.since}
        for op in selection.ops
    ]
    return {
        "functions": found,
        "any": of_any,
        "statements": statements(kernels),
        "activations": activations,
        "ops": ops,
        "aliases": aliases.of(found, selection.ops),
        "abi_version": abi.version(),
        "note": BYTES_NOTE,
    }


# What include/kf/core calls its own.
CORE_NAMES = (
    "f16",
    "bf16",
    "i32",
    "i64",
    "u32",
    "u64",
    "result_t",
    "dtype_t",
    "activation_t",
    "context_t",
    "tensor_t",
    "stream_t",
    "event_t",
    "get_error_string",
    "get_last_error_detail",
    "check_abi",
    "load",
    "store",
    "warp_sum",
    "warp_max",
    "warp_min",
    "block_sum",
    "block_max",
    "block_min",
    "philox",
    "dropout",
    "rng_t",
    "make_rng",
    "read_rng",
    "rope_scheme_t",
    "rope_scaling_t",
    "rope_magnitude",
    "rope_frequencies_f32",
    "rope_table_f32",
    "rope_table_f64",
)


def clashes(selection, user=None):
    """Names that two entries would give to two things of one language: [(name, first, second)]."""
    seen = {(cpu, f"kf_{name}"): "kf's core" for name in CORE_NAMES for cpu in (False, True)}
    found = []

    def take(name, what, cpu=False):
        if (cpu, name) in seen:
            found.append((name, seen[cpu, name], what))
        seen[cpu, name] = what

    def take_both(name, what):
        """C programs may include kf.h beside kf_launchers.h, which declares the names of CUDA's launchers."""
        take(name, what)
        take(name, what, cpu=True)

    for dtype in DTYPE:
        for what in ("abi_version", "error_string", "error_detail"):
            take_both(f"{names.launchers(user, dtype)}_{what}", "the launchers' own functions")
    for a in selection.activations:
        for bwd in (False, True) if a.name != "none" else ():
            take_both(names.scalar(a.name, bwd), f"activation `{a.name}`")
            take(names.scalar(a.name, bwd, double=True), f"activation `{a.name}`", cpu=True)
    for op in selection.ops:
        stem = names.stem(op.pattern)
        if stem in ("activations", "ops"):
            found.append((f"kf/ops/{stem}", "kf itself", f"op `{op.pattern}`"))
        take(f"kf/ops/{stem}", f"op `{op.pattern}`")
    for k in selection.all_kernels():
        take(f"kfk_{k.name}", f"op `{k.op.pattern}`")
        for launcher in k.launchers:
            what = f"op `{k.op.pattern}` with activation `{launcher.act.name}`{', backward' if k.bwd else ''}"
            take_both(launcher.name, what)
            take(launcher.cpu_name, what, cpu=True)
            if k.has_workspace:
                take_both(launcher.workspace, what)
                take(launcher.cpu_workspace, what, cpu=True)
        for launcher in chosen.kernel(k).launchers if chosen.has(k) else ():
            what = f"op `{k.op.pattern}` with the activation as an argument{', backward' if k.bwd else ''}"
            take_both(launcher.name, what)
            take(launcher.cpu_name, what, cpu=True)
    return found
