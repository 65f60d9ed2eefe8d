# SPDX-License-Identifier: Apache-2.0
"""Names that two entries, or an entry and kf itself, would define."""

from kfgen.model import names, runtime_activation
from kfgen.model.dtypes import DTYPE

# Names defined by include/kf/core.
CORE_NAMES = """
    f16 bf16 i32 i64 u32 u64 result_t dtype_t activation_t context_t tensor_t stream_t
    event_t get_error_string get_last_error_detail cpu_enable_amx check_abi load store warp_sum
    warp_max warp_min block_sum block_max block_min philox dropout rng_t make_rng read_rng
    rope_scheme_t rope_scaling_t rope_magnitude rope_frequencies_f32 rope_table_f32
    rope_table_f64
""".split()


def find(selection, user=None):
    """Returns [(name, first, second)] of names that two entries define."""
    seen = {(cpu, f"kf_{name}"): "kf's core" for name in CORE_NAMES for cpu in (False, True)}
    found = []

    def take(name, what, cpu=False):
        if (cpu, name) in seen:
            found.append((name, seen[cpu, name], what))
        seen[cpu, name] = what

    def take_both(name, what):
        """Reserves a name in CUDA and in C: a C program may include kf.h beside kf_launchers.h."""
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
            direction = f"{''.join(f', {word}' for word in k.variant)}{', backward' * k.bwd}"
            what = f"op `{k.op.pattern}` with activation `{launcher.act.name}`{direction}"
            take_both(launcher.name, what)
            take(launcher.cpu_name, what, cpu=True)
            if k.has_workspace:
                take_both(launcher.workspace, what)
                take(launcher.cpu_workspace, what, cpu=True)
        for launcher in runtime_activation.kernel(k).launchers if runtime_activation.has(k) else ():
            direction = ", backward" if k.bwd else ""
            what = f"op `{k.op.pattern}` with the activation as an argument{direction}"
            take_both(launcher.name, what)
            take(launcher.cpu_name, what, cpu=True)
    return found
