# SPDX-License-Identifier: Apache-2.0
"""The manifest: all public functions, for tests, benchmarks, documentation and frontends."""

from kfgen.entries import aliases
from kfgen.interfaces import abi
from kfgen.language import formulas
from kfgen.model import contract, names, runtime_activation, shapes
from kfgen.model.activation import bwd_reads_x
from kfgen.model.dtypes import FLOAT_DTYPES, INT_DTYPES
from kfgen.model.entries import Scalar
from kfgen.model.types import ACC, FIRST, INDEX_VARIABLE

BYTES_NOTE = "bytes: per element of the result, every tensor once; row tensors are not counted"
SHARED = """
    op family form layout dtypes variables bwd variant state dropout sizes workspace_arguments
    scratch
""".split()  # fields of functions with the activation as an argument
# Attributes of a family by which frontends decide, instead of by its name.
OF_FRONTENDS = ("reduces", "axis_may_be_none", "decomposes")
EPSILON = {"f32": 2.0**-23, "f64": 2.0**-52}  # machine epsilon of the computation's dtype


def null(k, stream, act):
    """Meaning of a NULL pointer; docs/manifest.md lists the values of the field `null`."""
    if stream.role != "in":
        return "" if stream.required else "skipped"
    if k.unread(stream, act):
        return "unread"
    if k.by(act) and stream.reads in ("result", "act"):
        return "inputs" if stream.reads == "result" else "result"
    return "" if stream.absent is None else "absent"


def index(k, stream):
    """Valid range of a column index and the effect of other values, or None for other operands."""
    below = k.below(stream) if stream.role == "in" else None
    return below and {"least": 0, "below": below, "outside": "no gradient" if k.bwd else "NaN"}


def tensor(k, stream, act, backward):
    """Describes a tensor argument (docs/manifest.md).

    Args:
        backward: kernel of the gradients, or None.
    """
    strides = (
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
        "extents": [shapes.parse(text) for text in k.shape(stream)],
        "dtype": stream.dtype.word,
        "var": stream.var,
        "null": null(k, stream, act),
        "unread": stream.role == "in" and k.unread(stream, act),
        "absent": stream.absent,
        "same_as": stream.same_as,
        "unchanged": stream.unchanged,
        "place_of": stream.place_of,
        "in_place": contract.in_place(k, stream) if stream.role != "in" else [],
        "strides": strides,
        "broadcast": bool(strides) and stream.role == "in",
        "gradient": next((s.name for s in backward.streams if s.of == stream.name), "")
        if backward
        else "",
        "summed_over": k.summed_extents(stream) if summed else [],
        "accumulated": bool(stream.role != "in" and k.betas and k.accumulated(stream)),
        "index": index(k, stream),
        "list": stream.is_list,
        "pages": contract.pages(k, stream),
        "memory": "device",
        "positive": any(o.name == stream.name and o.positive for o in k.op.operands),
    }


ON_HOST = ("shape", "strides", "activation_scalars", "lengths")
# Meaning of a NULL pointer that is no tensor.
NULL = {"strides": "dense", "workspace": "no bytes", "activation_scalars": "the defaults"}


def value(k, act, argument):
    """Describes an argument that is no tensor."""
    scalar = (
        (k.op.scalar_info | act.scalar_info).get(argument.name)
        if argument.role in ("scalar", "integer", "act_scalar")
        else None
    )
    found = {"name": argument.name, "role": argument.role, "ctype": argument.ctype.strip()}
    if scalar:
        found |= {
            "default": scalar.default,
            **scalar.bounds,
            "unread": argument.name in k.unread_scalars,
            "changes": k.changing.get(argument.name, ""),
        }
    if argument.role == "beta":
        found |= {"default": 0.0, **Scalar(0.0, 0.0).bounds, "unread": False, "changes": ""}
    if argument.role == "strides":
        found |= {"struct": k.stride_struct, "fields": k.stride_fields}
    if argument.role in ("size", "count"):
        found |= {"least": 1 if k.refuses and argument.name == "axis" else 0}
    if argument.role == "shape":
        found |= k.struct.describe([*k.sizes, *k.options])
    if "*" in argument.ctype:
        found |= {
            "memory": "host" if argument.role in ON_HOST else "device",
            "null": NULL.get(argument.role, ""),
        }
    return found


def variables(k):
    """Type variables of a function: name, dtype, and the tensors that have it."""
    roles = {v.name: v.of for v in k.variables}
    roles |= {INDEX_VARIABLE: "whole numbers"} if k.op.indexed else {}
    roles |= {ACC: "sums and values of rows"} if any(s.var == ACC for s in k.streams) else {}
    return [
        {"name": name, "dtype": k.dtype_of(name).word, "of": role} for name, role in roles.items()
    ]


def tolerance(k, act):
    """Error bound of a result; None if it is exact or rounded once."""
    compute = k.dtype.compute
    if k.op.types.converts or compute not in EPSILON:
        return None
    return {
        "factor": max(act.ulp[compute], 2.0),
        "epsilon": EPSILON[compute],
        "ulp": int(k.dtype.size < 4),
    }


def autocast(k):
    """Policy for frameworks that choose dtypes.

    "low" (products): the framework's 2-byte dtype; "float32": sums and losses; "promote": tensors
    of several dtypes in the widest; "same": no change.
    """
    if k.family.autocast:
        return k.family.autocast
    if k.dtypes[0] not in FLOAT_DTYPES or k.op.types.converts:
        return "same"
    if k.graph.levels is not None or k.op.reduced:
        return "float32"
    return (
        "promote" if sum(s.var == FIRST and s.use != "gradient" for s in k.inputs) > 1 else "same"
    )


def saves(launcher, backward):
    """Tensors of the forward that the backward reads."""
    if not backward:
        return []
    return [
        s.name for s in backward.inputs if s.use != "gradient" and backward.reads(s, launcher.act)
    ]


def saves_by_result(launcher, backward):
    """Tensors of the forward that a backward by the activation's result reads, or None without
    one.
    """
    if not backward or not backward.by(launcher.act):
        return None
    return [
        s.name for s in backward.inputs if s.use != "gradient" and s.reads in ("always", "result")
    ]


def axes(k):
    """Rules by which tensors' dimensions determine sizes (`Family.axes`); None if shapes do not
    determine them.
    """
    if not k.sizes:
        return {"axis": None, "sizes": {}, "batch": None, "shaped_by": [], "channels_last": None}
    if k.form not in k.family.axes:
        return None
    axis, rules = k.family.axes[k.form]
    by = {s.name: k.shape(s) for s in k.inputs}
    shaping = [by[name] for name in k.shaped_by] or [k.extents]
    unknown = shapes.undetermined(rules, [[shapes.parse(e) for e in of] for of in shaping])
    if unknown:
        raise ValueError(f"{k.name}: no tensor says how many dimensions `{unknown}` has")
    batch = next((size for size, rule in rules.items() if shapes.spans(rule)), None)
    return {
        "axis": axis,
        "sizes": rules,
        "batch": batch,
        "shaped_by": list(k.shaped_by),
        "channels_last": k.family.channels_last.get(k.form),
    }


def cost(k, tensors):
    """Bytes (every tensor once, overwritten ones twice) and operations, as expressions of sizes.

    A gradient that may use the activation's result is counted that way.
    """
    streams = {s.name: s for s in k.inputs + k.outputs}
    moved = [
        (tuple(k.touched(s)), s.dtype.size * s.passes)
        for t, s in ((t, streams[t["name"]]) for t in tensors)
        if not t["unread"] and t["null"] != "result"
    ]
    sums = {}
    for shape, size in moved:
        sums[shape] = sums.get(shape, 0) + size
    return {
        "bytes": " + ".join(shapes.product([str(n), *shape]) for shape, n in sums.items()),
        "flops": shapes.product([str(k.flops), *k.extents]) + (f" + {k.work}" if k.work else ""),
    }


def of_kernel(k):
    """Fields shared by a kernel's functions."""
    return {
        "variables": variables(k),
        "axes": axes(k),
        "formula": contract.formulas(k),
        "flops": k.flops,
        "workspace_arguments": k.size_names if k.has_workspace else [],
        "scratch": k.scratch,
        "autocast": autocast(k),
        **{word: getattr(k.family, word) for word in OF_FRONTENDS},
        "rsqrt_defaults": k.family.rsqrt_defaults,
        "any_order": k.form in k.family.any_order,
        "permutable": k.permutable,
        "backends": list(k.backends),
        "architecture": k.family.architecture,
    }


def backward_of(k):
    """The kernel of the gradients with the fewest dtypes."""
    if k.bwd or not k.has_backward:
        return k if k.bwd else None
    return k.family.backward(k.op, k.family.backward_types(k.op, k.types)[0], k.variant)


def _by_result(launcher, backward):
    """Fields of a function that depend on the activation and on its gradient by the result."""
    k, act = launcher.kernel, launcher.act
    formula, by_result = (
        names.formula(k.op.pattern, act.name, k.bwd, by, k.variant) for by in (False, True)
    )
    by = backward and backward.by(act)
    return {
        "saves": saves(launcher, backward),
        "saves_by_result": saves_by_result(launcher, backward),
        "rising": [s for s in act.scalars if s in act.rising] if by else [],
        "errors": contract.codes(k, act),
        "formula_by_result": contract.formulas(k, True) if k.by(act) else None,
        "statements": formula,
        "statements_by_result": by_result if k.by(act) else None,
    }


def function(launcher, user=None, common=None, backward=None):
    """Describes one function.

    Args:
        backward: kernel of the gradients, if the caller has it.
    """
    k, act = launcher.kernel, launcher.act
    backward = backward or backward_of(k)
    folder = names.folder(user if user and not (k.op.builtin and act.builtin) else None)
    tensors = [tensor(k, s, act, backward) for s in k.inputs + k.outputs]
    by_name = {t["name"]: t for t in tensors}
    arguments = [by_name.get(a.name) or value(k, act, a) for a in launcher.arguments]
    defaults = k.op.scalars | act.scalars | dict.fromkeys(k.betas, 0.0)
    moved = [
        s
        for s in k.inputs + k.outputs
        if not k.is_small(s)
        and not by_name[s.name]["unread"]
        and by_name[s.name]["null"] != "result"
    ]
    forward = names.function(
        k.op.pattern, act.name, k.forward_dtypes, state=launcher.state, variant=k.forward_variant
    )
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
        "variant": names.suffixes(variant=k.variant),
        "forward": forward,
        "backward": backward.function(act.name, launcher.state) if backward else None,
        **_by_result(launcher, backward),
        "tolerance": tolerance(k, act),
        "steps": k.cuda.launch_steps(launcher) if "cuda" in k.backends else [],
        "state": launcher.state,
        "dropout": k.dropout,
        "masked": k.masked,
        "sizes": k.sizes,
        "arguments": arguments,
        "scalars": {s: defaults[s] for s in [*k.flat_integers, *k.scalars, *act.scalars, *k.betas]},
        "workspace": launcher.workspace if k.has_workspace else None,
        "cpu_workspace": launcher.cpu_workspace if k.has_workspace else None,
        "signature": _signature(launcher),
        "cpu_signature": f"kf_result_t {launcher.cpu_name}({launcher.cpu_parameters})",
        "cost": cost(k, tensors),
        "bytes": sum(s.dtype.size * k.per_element(s) * s.passes for s in moved),
        "integer": k.dtypes[0] in INT_DTYPES and not k.op.types.converts,
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
    """Describes a kernel's functions whose activation is an argument.

    Args:
        members: the kernel's other functions, as described in the manifest.
    """
    found, one = [], runtime_activation.kernel(k)
    for launcher in one.launchers:
        of = {f["activation"]: f for f in members if f["state"] == launcher.state}
        first = next(iter(of.values()))
        builtin = k.op.builtin and all(a.builtin for a in k.acts)
        folder = names.folder_any(None if builtin else user)
        header = f"{folder}/{names.stem(k.op.pattern)}"
        tensors = {}
        for alike in zip(*([a for a in f["arguments"] if "kind" in a] for f in of.values())):
            meanings = {a["null"] for a in alike}
            tensors[alike[0]["name"]] = alike[0] | {
                "null": meanings.pop() if len(meanings) == 1 else "activation",
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
                "steps": one.cuda.launch_steps(launcher),
                "arguments": arguments,
                **{key: first[key] for key in SHARED},
            }
        )
    return found


def statements(kernels):
    """Returns {key: {library: lines}}, the same for all dtypes."""
    found = {}
    for k in kernels:
        for act in k.acts:
            for by in (False, True) if k.by(act) else (False,):
                key = names.formula(k.op.pattern, act.name, k.bwd, by, k.variant)
                if key not in found:
                    found[key] = {
                        library: k.family.statements(k, act, library, by)
                        for library in formulas.LIBRARIES
                    }
    return found


def signatures(selection):
    """Signatures of all functions, without the rest of the manifest."""
    return [_signature(launcher) for k in selection.all_kernels() for launcher in k.launchers]


def forwards(selection, wanted):
    """Describes the first forward function of each (op, activation), without the rest of the
    manifest.
    """
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
            next((k for k in kernels if k.bwd and _key(k) == _key(first.kernel)), None),
        )
    return list(found.values())


def _key(k):
    """Key that is the same for both directions of a function."""
    return k.op.pattern, k.dtypes, k.variant


def _signature(launcher):
    return f"kf_result_t {launcher.name}({launcher.cuda_parameters})"


def build(selection, user=None):
    """Builds the manifest of a selection, in the order of the spec.

    Args:
        user: stem of the user's spec files, which are rendered beside kf's own.
    """
    kernels = selection.all_kernels()
    backward = {_key(k): k for k in kernels if k.bwd}
    found = [
        function(launcher, user, common, backward.get(_key(k)))
        for k in kernels
        for common in [of_kernel(k)]
        for launcher in k.launchers
    ]
    own = {f["name"]: f for f in found}
    of_any = [
        f
        for k in kernels
        if runtime_activation.has(k)
        for f in any_activation(k, [own[launcher.name] for launcher in k.launchers], user)
    ]
    fields = ("name", "id", "brief", "scalars", "ulp", "rounding", "source", "budget")
    activations = [{name: getattr(a, name) for name in fields} for a in selection.activations]
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
