# SPDX-License-Identifier: Apache-2.0
"""The step that all optimizers share: gathers tensors and calls one op per dtype and device."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kernel_fusion import _table, ops
from kernel_fusion.optim._cohorts import Cohorts
from kernel_fusion.optim._rules import FIRST, Group, Rule
from kernel_fusion.optim._tensors import Held, gradient, is_split, local

SCALING = ("grad_scale", "found_inf")  # attributes that GradScaler sets during a step


@dataclass(eq=False)
class Batch:
    """Parameters that one call updates: same group, device, dtypes and number of steps.

    Args:
        op: name of the op.
        buffers: names of the state's tensors in the op.
        values: scalars of the call, also those that the op reads from memory.
        numbers: names of the latter.
        decay: factor of the parameters before the call, if weight decay is a call of its own.
        held: tensors of each parameter.
        counts: number of steps of each parameter, if the state has it.
        momenta: product of the momenta of each parameter, if the state has it.
    """

    op: str
    buffers: list[str]
    values: dict[str, Any]
    numbers: frozenset[str]
    decay: Any = None
    held: list[Held] = field(default_factory=list)
    counts: list[Tensor] = field(default_factory=list)
    momenta: list[Tensor] = field(default_factory=list)

    def run(self) -> None:
        """Counts the step and calls the op."""
        params, *buffers = ([*own] for own in zip(*(h.written for h in self.held)))
        grads, named = [h.grad for h in self.held], dict(zip(self.buffers, buffers))
        self._count()
        if self.decay is not None:
            _scale(params, self.decay)
        values: dict[str, Any] = {
            name: number(x, params[0])
            if name in self.numbers
            else float(x)
            if isinstance(x, Tensor)
            else x
            for name, x in self.values.items()
        }
        getattr(ops, self.op)(params, grads, **named, **values)
        for h in self.held:
            h.write_back()
        if self.counts and "found_inf" in values:
            skipped = (values["found_inf"] != 0).to(self.counts[0]).reshape(())
            torch._foreach_sub_(self.counts, [skipped] * len(self.counts))

    def _count(self) -> None:
        """Advances what the state has for the whole parameter."""
        step = self.values.get("step")
        if self.counts:
            torch._foreach_add_(self.counts, 1.0)
            if "step" in self.numbers:
                step = self.values["step"] = self.counts[0]
        if self.momenta:
            decayed = 0.96 ** (step * self.values["momentum_decay"])
            torch._foreach_mul_(self.momenta, self.values["beta1"] * (1 - 0.5 * decayed))
            self.values["mu_product"] = self.momenta[0]


def _scale(params: list[Tensor], factor: Any) -> None:
    if on_gpu(factor):
        ops.multi_scale_device(params, factor=number(factor, params[0]))
    else:
        ops.multi_scale(params, factor=float(factor))


class Chosen:
    """The choice that a group's options make for a step.

    Args:
        index: of the group.
    """

    def __init__(self, index: int, group: Group, rule: Rule):
        self.index, self.group, self.rule = index, group, rule
        self.has_state = bool(rule.numbers or rule.buffers)
        # Keys of the tensors of a state, in the op's order; None for zeros that no state keeps.
        self.keys = [b.key if b.when(group) else None for b in rule.buffers]


def number(value: Any, beside: Tensor) -> Tensor:
    """Returns a tensor of one number, in the precision and on the device of a call's tensors."""
    dtype = torch.float64 if beside.dtype == torch.float64 else torch.float32
    if isinstance(value, Tensor):
        found = value.detach().to(beside.device, dtype, non_blocking=beside.device.type != "cpu")
        return found.reshape(1)
    return torch.full((1,), value, dtype=dtype, device=beside.device)


def on_gpu(x: Any) -> bool:
    return isinstance(x, Tensor) and x.device.type != "cpu"


class Stepped(torch.optim.Optimizer):
    """Base of kf's optimizers, which precedes torch.optim's class among the bases."""

    def rule(self, group: Group) -> Rule:
        """Returns what a group's options ask for."""
        raise NotImplementedError

    @property
    def where(self) -> str:
        """Name in messages."""
        return f"kf.optim.{type(self).__name__}"

    def add_param_group(self, param_group: Group) -> None:
        super().add_param_group(param_group)
        self._check(self.param_groups[-1])

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.__dict__.pop("_cohorts", None)  # loaded counts are read again
        for group in self.param_groups:
            self._check(group)

    def _check(self, group: Group) -> None:
        """Takes over the options of a group; refuses those that kf cannot honour."""
        if group.get("differentiable"):
            raise ValueError(
                f"{self.where}: differentiable is True, expected False: kf's updates have no "
                f"gradient"
            )
        if group.get("fused"):
            # GradScaler reads it. Some of PyTorch's classes do not set it, and copies lose it.
            self._step_supports_amp_scaling = True

    # torch.compile leaves a step as it is.
    @torch._disable_dynamo  # type: ignore[attr-defined]
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the parameters that have a gradient.

        Args:
            closure: computes the loss and the gradients again.

        Returns:
            The closure's loss, or None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found_inf = getattr(self, "found_inf", None)
        if found_inf is None or on_gpu(found_inf) or not float(found_inf):
            self._check_capture()
            self._run(self._batches())
        return loss

    def _check_capture(self) -> None:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            for i, group in enumerate(self.param_groups):
                if not group.get("capturable", True):
                    raise RuntimeError(
                        f"{self.where}: capturable of param_groups[{i}] is False, expected True "
                        f"while a CUDA graph is captured"
                    )

    def _run(self, batches: list[Batch]) -> None:
        for batch in batches:
            batch.run()

    def _batches(self) -> list[Batch]:
        """Gathers the calls of a step. Writes nothing but the state of parameters without one."""
        found: dict[Any, Batch] = {}
        if not hasattr(self, "_cohorts"):
            self._cohorts = Cohorts()
        self._cohorts.begin()
        for index, group in enumerate(self.param_groups):
            chosen = Chosen(index, group, self.rule(group))
            for i, param in enumerate(group["params"]):
                if param.grad is not None:
                    self._gather(found, chosen, i, param)
        return list(found.values())

    def _gather(self, found: dict[Any, Batch], chosen: Chosen, i: int, param: Tensor) -> None:
        """Adds parameter i of a group to a call."""

        def name() -> str:
            return f"params[{i}]" + (f" of group {chosen.index}" if self.param_groups[1:] else "")

        if chosen.group.get("capturable") and param.device.type == "cpu":
            raise ValueError(
                f"{self.where}: capturable is True and {name()} is on the CPU, expected a GPU"
            )
        if chosen.rule.whole and is_split(param):
            placements = getattr(param, "placements", ())
            raise RuntimeError(
                f"{self.where}: {name()} is split over processes ({placements}), expected a whole "
                f"parameter: its update reads norms"
            )
        grad = gradient(self.where, name, param)
        state = self.state[param] if chosen.has_state else {}
        fresh = self._start(param, state, chosen)
        buffers = [state[key] if key else self._filled(param, 0.0) for key in chosen.keys]
        held = self._held(param, grad, [local(x) for x in buffers])
        read = [state[name] for name in chosen.rule.numbers]
        if not read:
            key: tuple[Any, ...] = (1 if fresh else 2,)
        elif on_gpu(read[0]):
            key = (self._cohorts.advance(read, fresh),)
        else:
            key = (int(read[0]) + 1, *[float(x) for x in read[1:]])
        age = key[0]
        key += (chosen.index, fresh, grad.device, grad.dtype, self._part(param))
        key += (*[x.dtype for x in held.written],)
        batch = found.get(key)
        if batch is None:
            batch = found[key] = self._batch(chosen, age, read, held.written[0])
        batch.held.append(held)
        for own, x in zip((batch.counts, batch.momenta), read):
            own.append(x)

    def _batch(self, chosen: Chosen, age: Any, read: list[Tensor], param: Tensor) -> Batch:
        """Returns a call without parameters.

        Args:
            age: the number of this step where the host knows it.
            read: numbers in the state of the first parameter.
            param: the first parameter as the op takes it.
        """
        rule = chosen.rule
        op, values = rule.op, rule.scalars(chosen.group) | {"step": age}
        decay = 1 - values["lr"] * values["weight_decay"] if rule.decays else None
        if rule.decays:
            values["weight_decay"] = 0.0
        if read[1:]:
            values["mu_product"] = read[1]
        values |= {n: x for n in SCALING if (x := getattr(self, n, None)) is not None}
        if on_gpu(param) and on_gpu([*read, values["lr"]][0]):
            op += "_device"
        call = _table.functions()[op][0].forward
        inputs = {t.name for t in call.inputs}
        known = inputs | {v.name for v in (*call.scalars, *call.integers)}
        values = {name: x for name, x in values.items() if name in known}
        buffers = [b.operand or b.key for b in rule.buffers]
        return Batch(op, buffers, values, frozenset(inputs & {*values}), decay)

    def _start(self, param: Tensor, state: dict[str, Any], chosen: Chosen) -> bool:
        """Makes the state of a parameter's first step. Returns True if it is the first."""
        for name in chosen.rule.numbers:
            if name not in state:
                state[name] = self._number(param, chosen.group, FIRST[name])
        fresh = False
        for b, key in zip(chosen.rule.buffers, chosen.keys):
            if key and key not in state:
                fresh = True
                state[key] = self._filled(param, self.defaults[b.fill] if b.fill else 0.0)
        return fresh

    def _number(self, param: Tensor, group: Group, value: float) -> Tensor:
        """Makes a number of the state where PyTorch has it, in PyTorch's dtype."""
        if group.get("capturable") or group.get("fused"):
            return torch.full((), value, dtype=torch.float32, device=self._home(param))
        wide = torch.get_default_dtype() == torch.float64
        return torch.full((), value, dtype=torch.float64 if wide else torch.float32, device="cpu")

    def _filled(self, param: Tensor, value: float) -> Tensor:
        """Makes a tensor of the state."""
        return torch.full_like(
            param,
            complex(value, value) if param.is_complex() else value,
            device=self._home(param),
            memory_format=torch.preserve_format,
            requires_grad=False,
        )

    def _home(self, param: Tensor) -> torch.device:
        """Returns the device of a parameter's state."""
        return param.device

    def _held(self, param: Tensor, grad: Tensor, buffers: list[Tensor]) -> Held:
        """Returns the tensors that the op reads and writes."""
        return Held([local(param), *buffers], grad)

    def _part(self, param: Tensor) -> tuple[Any, ...]:
        """Returns what separates parameters into calls besides their options and dtypes."""
        return ()
