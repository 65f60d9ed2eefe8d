# SPDX-License-Identifier: Apache-2.0
"""Base classes of the schedules of all families: Cuda and C."""

import functools
from dataclasses import dataclass

from kfgen.language.emit import Target
from kfgen.model import limits, steps
from kfgen.model.activation import CALLS, GIVEN, bwd_reads_x
from kfgen.model.steps import PARTIALS, SUMS, Instance, Launch, Step

# CUDA primitives whose cheap form is as accurate as float32 operations: ops on 2-byte tensors may
# use it even if the result is added to something. Outside activations all other primitives are
# exact.
CHEAP = {"div", "sqrt", "rsqrt", "rcp"}
# Parameters of a run function after the probability: seed and offset, and for `_state` launchers
# the addend of the offset and pointers to both.
DROPOUT = (
    "uint64_t kfi_seed",
    "uint64_t kfi_offset",
    "const uint64_t *seed",
    "const uint64_t *offset",
)
STATIC_SHARED = 48 << 10  # bytes of shared memory per block without an attribute, on every device


class Cuda:
    template = "kernel"  # templates/<family>/<template>.cuh.j2
    run_template = "run"  # template of the run function
    core = ()  # headers that the kernels need besides the family's, without .cuh

    def __init__(self, kernel):
        self.k = kernel

    @property
    def bounded(self):
        """Texts of the kernel's `bounded` as doubles."""
        return [f"(double){s}" for s in self.k.bounded]

    def target(self, cheap):
        """Returns the Target. cheap: primitives that use their cheap form on 2-byte tensors."""
        k, act = self.k, "kfi_tag<act>()"

        def either(x):
            by, result = (
                ("kfi_activation", k.result_slot.name if k.result_slot else k.result)
                if k.runtime_activation and k.by_result
                else ("act", k.result)
            )
            return f"{by} < 0 ? {result}_f[e] : {x}" if k.by_result else x

        if k.runtime_activation:  # values per row; vectors have activation_calls (split)
            own = f"{k.act_flavour}({{}}, scalars, kfi_activation)"
            return Target(
                "kfi_",
                k.flavour,
                False,
                cheap=cheap if k.dtype.flavour == "lp" else frozenset(),
                gradient_argument=either,
                act=lambda x: f"kfi_chosen_{own.format(x)}",
                act_bwd=lambda x, dy: f"kfi_chosen_bwd_{own.format(f'{either(x)}, {dy}')}",
            )

        return Target(
            "kfi_",
            k.flavour,
            False,
            cheap=cheap if k.dtype.flavour == "lp" else frozenset(),
            act=lambda x: f"kfi_act_{k.act_flavour}({act}, {x}, scalars)",
            act_bwd=lambda x, dy: f"kfi_act_bwd_{k.act_flavour}({act}, {either(x)}, {dy}, scalars)",
        )

    def packs(self, stream):
        """True if one instruction converts two results to 2-byte storage."""
        return self.k.dtype.compute == "f32" and stream.dtype.size == 2

    @property
    def sum_runs(self):
        """Gradients of each launch of the second stage: neighbours of one dtype, at most
        SUM_OUTPUTS.
        """
        runs = []
        for s in self.k.added:
            if not runs or s.dtype != runs[-1][0].dtype or len(runs[-1]) == limits.SUM_OUTPUTS:
                runs.append([])
            runs[-1].append(s)
        return runs

    @property
    def several_runs(self):
        return len(self.sum_runs) > 1

    def sum_steps(self, counts, planes="", **more):
        """Returns the steps of the second stage, one per launch (core/sums.cuh).

        Args:
            counts: size of a gradient, an expression.
            planes: the same if partial sums may be of planes, whose kernel is another one.
        """
        acc = f"KF_{self.k.dtype.acc.word.upper()}"

        def step(run):
            dtypes = (acc, f"KF_{run[0].dtype.word.upper()}")
            columns = Launch(
                (Instance("kfk_sum_partials", dtypes),), f"ceil({counts} / 32), {len(run)}", "512"
            )
            of_planes = Launch(
                (Instance("kfk_sum_planes", dtypes),), f"{planes}, {len(run)}", "256"
            )
            return Step(
                f"adds up the partial sums over {self.k.summed_over}",
                (columns, of_planes) if planes else (columns,),
                (PARTIALS,),
                steps.names(run),
                table=SUMS,
                **more,
            )

        return [step(run) for run in self.sum_runs]

    @property
    def buffers(self):
        """Parts of the workspace: {name: what it holds}."""
        return {PARTIALS: "partial sums of the summed gradients"} if self.k.added else {}

    @functools.cached_property
    def steps(self):
        """Launch steps of a call, in order. The default: one launch of one of `instances`."""
        read = [s for s in self.k.inputs if s.reads != "never"]
        launch = Launch(tuple(self.instances), "by the sizes", "by the sizes")
        return [
            Step("computes the results", (launch,), steps.names(read), steps.names(self.k.outputs))
        ]

    def steps_of(self, act):
        """Launch steps of a call with one activation."""
        return self.steps

    @property
    def sum_kernels(self):
        """Kernels of the second stage of a sum."""
        return steps.table(self.steps, SUMS)

    def launch_steps(self, launcher):
        """Returns a launcher's steps for the manifest, with kernels as nvrtcAddNameExpression
        spells them.
        """
        act = launcher.act
        acts = [act.id, *([~act.id] if self.k.by(act) else [])]
        return steps.described(self.steps_of(act), acts, launcher.state)

    @property
    def keep_scale(self):
        return "rng.scale_f64" if self.k.dtype.compute == "f64" else "rng.scale"

    @property
    def run_parameters(self):
        found = [
            f"{a.ctype}{a.name}"
            for a in (
                *self.k.tensor_arguments,
                *self.k.size_arguments,
                *self.k.list_arguments,
                *self.k.stride_arguments,
            )
        ]
        found += [f"int64_t {s}" for s in self.k.flat_integers] + [
            f"{self.k.scalar_ctype} {s}" for s in self.k.scalars + self.k.betas
        ]
        if self.k.dropout:
            found += [f"{self.k.scalar_ctype} p", *DROPOUT]
        found += [f"{a.ctype}{a.name}" for a in self.k.workspace_arguments] + [
            "cudaStream_t stream"
        ]
        if self.k.runtime_activation:
            layout = ["const int64_t *kfi_layout"] * self.k.any_strides
            return ", ".join(
                found + [f"{a.ctype}{a.name}" for a in self.k.choice_arguments] + layout
            )
        return ", ".join(
            found + ([f"{self.k.scalar_struct} kfi_scalars = {{}}"] if self.k.has_act else [])
        )

    @property
    def act_parameters(self):
        """Kernel parameters that depend on the activation."""
        return [f"{self.k.scalar_struct} scalars"] * self.k.has_act + [
            "int kfi_activation"
        ] * self.k.runtime_activation

    @property
    def act_arguments(self):
        """Arguments of a launch for act_parameters."""
        return ["kfi_scalars"] * self.k.has_act + ["kfi_activation"] * self.k.runtime_activation

    def launched(self, *names):
        """Returns the kernel arguments of a launch, as pointers to the run function's variables."""
        return ", ".join(
            f"&{n}" for n in (*names, *["kfi_random"] * self.k.keeps, *self.act_arguments)
        )

    @property
    def act_word(self):
        return (
            f'"{self.k.acts[0].name}"'
            if self.k.runtime_activation
            else "kfi_act_word(kfi_tag<kfi_act>())"
        )

    @property
    def act_rising(self):
        return (
            "kfi_by ? kfi_chosen->rising : nullptr"
            if self.k.runtime_activation
            else "kfi_act_rising(kfi_tag<kfi_act>())"
        )

    @property
    def tensor_codes(self):
        asked = (
            ("kfi_reads", "kfi_by")
            if self.k.runtime_activation
            else ("kfi_act_bwd_reads(kfi_tag<kfi_act>())", "kfi_act < 0")
        )
        return self.k.tensor_codes(*asked)

    @property
    def act_ctype(self):
        """Type in which the activation is computed."""
        return {"f64": "double", "i32": "kf_i32", "i64": "kf_i64"}.get(self.k.act_flavour, "float")

    def conditions(self, stream):
        """Conditions under which a kernel reads the tensor."""
        found = {"act": ["kfi_act_bwd_reads(kfi_tag<act>())"], "result": ["act < 0"]}.get(
            stream.reads, []
        )
        if found and self.k.runtime_activation:
            return [stream.name]  # the launcher passes NULL for tensors that are not read
        return found + ([stream.name] if stream.absent is not None else [])

    def guard(self, stream):
        found = self.conditions(stream)
        return f"if ({' && '.join(found)}) " if found else ""


@dataclass
class Text:
    """Text of a kernel's C functions and the activations that share it."""

    act: object  # the activation it is written for, or GIVEN
    acts: list
    by: bool = False  # True: the gradient reads the activation's result

    @property
    def name(self):
        return self.acts[0].name

    @property
    def given(self):
        return self.act is GIVEN


class C:
    core = ()  # headers that the functions need besides the family's, without .h

    def __init__(self, kernel):
        self.k = kernel

    @property
    def bounded(self):
        """Texts of the kernel's `bounded` as doubles."""
        k = self.k
        return [
            f"(double)kfi_integers[{k.integers.index(s)}]"
            if s in k.integers
            else f"(double)((const {k.scalar_ctype} *)kfi_scalars)[{k.scalars.index(s)}]"
            for s in k.bounded
        ]

    @property
    def act_flavour(self):
        """Flavour of the activation. C's cheap forms are less accurate than CUDA's: terms of a sum,
        which may cancel, use the exact form.
        """
        return self.k.flavour if self.k.added else self.k.act_flavour

    def stand_in(self, act):
        """Returns the activation of a text: GIVEN, or act itself for a gradient that does not read
        its argument, which may be NULL then.
        """
        return act if not self.k.has_act or (self.k.bwd and not bwd_reads_x(act)) else GIVEN

    def texts(self, acts):
        found = {}
        for act in acts:
            own = self.stand_in(act)
            found.setdefault(own.name, Text(own, [])).acts.append(act)
        return list(found.values())

    def given_parameters(self, calls):
        """Returns the parameters that pass an activation. calls: keys of CALLS that are used."""
        found = [f"{CALLS[c]}_fn_{self.k.flavour} {CALLS[c]}" for c in calls]
        return "".join(f", {p}" for p in found + (["const int kfi_count"] if found else []))

    def given_arguments(self, calls, act=None):
        """Returns the arguments for given_parameters: functions of act, or the caller's own
        parameters.
        """
        found = [
            f"kfi_cpu_act_{act.name}{c.removeprefix('act')}_of_{self.act_flavour}"
            if act
            else CALLS[c]
            for c in calls
        ]
        return "".join(
            f", {a}"
            for a in found + ([str(len(act.scalars)) if act else "kfi_count"] if found else [])
        )

    @property
    def given_struct(self):
        return f"kfi_act_scalars_{'f64' if self.k.scalar_ctype == 'double' else 'f32'}"

    def given_scalars(self, where):
        """Returns the declaration of the activation's scalars. where: the call's scalars."""
        load = self.given_struct.replace("scalars_", "scalars_of_")
        count = len(self.k.scalars)
        return f"const {self.given_struct} kfi_s = {load}({where}, {count}, kfi_count);"

    def given_on(self, calls):
        """Returns {name: declaration} of the activation's parameters that a function passes on."""
        functions = {CALLS[c]: f"{CALLS[c]}_fn_{self.k.flavour} {CALLS[c]}" for c in calls}
        return functions | ({"kfi_s": f"const {self.given_struct} kfi_s"} if calls else {})

    def target(self, act):
        if act is GIVEN:
            return Target(
                "kfi_cpu_",
                self.k.flavour,
                True,
                act=lambda x: f"kfi_act({x}, kfi_s)",
                act_bwd=lambda x, dy: f"kfi_act_bwd({x}, {dy}, kfi_s)",
                act_bwd_out=lambda y, dy: f"kfi_act_bwd({y}, {dy}, kfi_s)",
                called={node: (name, "kfi_s") for node, name in CALLS.items()},
            )
        flavour = self.act_flavour
        extra = "".join(f", {s}" for s in act.scalars)
        return Target(
            "kfi_cpu_",
            self.k.flavour,
            True,
            act=lambda x: f"kfi_cpu_act_{act.name}_{flavour}({x}{extra})",
            act_bwd=lambda x, dy: f"kfi_cpu_act_{act.name}_bwd_{flavour}({x}, {dy}{extra})",
            act_bwd_out=lambda y, dy: f"kfi_cpu_act_{act.name}_bwd_out_{flavour}({y}, {dy}{extra})",
            called=dict.fromkeys(CALLS, tuple(act.scalars)),
        )

    @property
    def scalar_places(self):
        """[(name, index among the op's scalars)] of the scalars that the expressions read."""
        return [(s, i) for i, s in enumerate(self.k.scalars) if s in self.k.used_scalars]

    @property
    def is_staged(self):
        """True if elements are converted to float before the compute loop and back after it."""
        return self.k.dtype.size == 2

    @property
    def workspace_arguments(self):
        """Workspace arguments of the run function, which has them only if it uses them."""
        return self.k.workspace_arguments if self.k.scratch else []

    @property
    def stores(self):
        """Functions that store the summed gradients, each in its dtype."""
        return [f"kfi_store_sum_{s.dtype.word}" for s in self.k.added]

    @property
    def dropout_parameters(self):
        return (
            f", {', '.join([f'{self.k.scalar_ctype} p', *DROPOUT])}, int kfi_from_state"
            if self.k.dropout
            else ""
        )
