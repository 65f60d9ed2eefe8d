# SPDX-License-Identifier: Apache-2.0
"""The list of public functions that tests, benchmarks, documentation and frontends read."""

from kfgen import abi, names
from kfgen.activation import bwd_reads_x
from kfgen.dtypes import DTYPE, INT_DTYPES

BYTES_NOTE = "bytes: per element of the result, every tensor once; row tensors are not counted"


def tensor(k, stream, act):
    unread = stream.role == "in" and not k.reads(stream, act)
    return {
        "name": stream.name, "role": stream.role, "kind": stream.kind, "shape": k.shape(stream), "dtype": stream.dtype.word,
        "nullable": unread or not stream.required or stream.absent is not None, "unread": unread, "same_as": stream.same_as,
        "place_of": stream.place_of,
        "positive": any(o.name == stream.name and o.positive for o in k.op.operands)}


def function(launcher, user=None):
    k, act = launcher.kernel, launcher.act
    folder = names.folder(user if user and not (k.op.builtin and act.builtin) else None)
    tensors = [tensor(k, s, act) for s in k.inputs + k.outputs]
    by_name = {t["name"]: t for t in tensors}
    arguments = []
    for a in launcher.arguments:
        entry = by_name.get(a.name) if a.role in ("in", "out") else None
        arguments.append(entry or {"name": a.name, "role": a.role, "ctype": a.ctype.strip()})
    defaults = k.op.scalars | act.scalars
    moved = [s for s in k.inputs + k.outputs if not s.is_row and not by_name[s.name]["unread"]]
    return {
        "name": launcher.name, "cpu_name": launcher.cpu_name, "op": k.op.pattern, "family": k.family.name, "activation": act.name,
        "layout": k.layout, "form": k.form, "header": f"{folder}/{names.stem(k.op.pattern)}",
        "dtypes": list(k.dtypes), "bwd": k.bwd, "state": launcher.state,
        "dropout": k.dropout, "sizes": k.sizes, "arguments": arguments,
        "scalars": {s: defaults[s] for s in [*k.integers, *k.scalars, *act.scalars]},
        "workspace": k.workspace if k.scratch else None, "cpu_workspace": k.cpu_workspace if k.scratch else None,
        "signature": f"kf_result_t {launcher.name}({launcher.cuda_parameters})",
        "cpu_signature": f"kf_result_t {launcher.cpu_name}({launcher.cpu_parameters})",
        "bytes": sum(s.dtype.size * len(s.parts) for s in moved), "flops": k.flops,
        "integer": k.dtypes[0] in INT_DTYPES and k.op.types == "one", "reads_x": bwd_reads_x(act), "empty": k.op.empty, "source": k.op.source,
        "launchers": names.launchers(user if folder != names.folder() else None, k.dtypes[0]), "since": k.op.since}


def build(selection, user=None):
    """The whole manifest of a selection, in the order of the spec. user: the stem of spec files rendered beside the rest."""
    found = [function(launcher, user) for k in selection.all_kernels() for launcher in k.launchers]
    activations = [{
        "name": a.name, "id": a.id, "brief": a.brief, "scalars": a.scalars, "ulp": a.ulp, "rounding": a.rounding, "source": a.source,
        "budget": a.budget} for a in selection.activations]
    ops = [{"pattern": op.pattern, "brief": op.brief, "source": op.source, "since": op.since} for op in selection.ops]
    return {"functions": found, "activations": activations, "ops": ops, "abi_version": abi.version(), "note": BYTES_NOTE}


# What include/kf/core calls its own.
CORE_NAMES = ("f16", "bf16", "i32", "i64", "u32", "u64", "result_t", "dtype_t", "activation_t", "context_t", "tensor_t", "stream_t",
              "event_t", "get_error_string", "get_last_error_detail", "check_abi",
              "load", "store", "warp_sum", "warp_max", "warp_min", "block_sum", "block_max", "block_min", "philox", "dropout", "rng_t",
              "make_rng", "read_rng")


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
        if k.scratch:
            take_both(k.workspace, f"op `{k.op.pattern}`")
            take(k.cpu_workspace, f"op `{k.op.pattern}`", cpu=True)
    return found
