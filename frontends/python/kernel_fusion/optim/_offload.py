# SPDX-License-Identifier: Apache-2.0
"""Optimizers whose state lies partly on the host, which updates its part while the GPU works."""

from typing import Any, TypeVar

import torch
from torch import Tensor

from kernel_fusion.optim._rules import Group
from kernel_fusion.optim._step import Batch, Stepped
from kernel_fusion.optim._tensors import Held, is_distributed, local

CHUNK = 1 << 24  # elements that are copied and updated together
T = TypeVar("T", bound=Stepped)


class Copies(Held):
    """A parameter and its gradient in host memory, which is page-locked beside a GPU."""

    def __init__(self, param: Tensor):
        self.copied, self.copied_grad = (
            torch.empty_like(param, device="cpu", requires_grad=False, pin_memory=param.is_cuda)
            for _ in range(2)
        )

    def of(self, param: Tensor, grad: Tensor, buffers: list[Tensor]) -> "Copies":
        """Takes the tensors of a step, on the parameter's device, and the state on the host."""
        self.param, self.source = param, grad
        super().__init__([self.copied, *buffers], self.copied_grad)
        return self

    def fetch(self) -> None:
        """Copies the parameter and its gradient to the host."""
        self.copied.copy_(self.param, non_blocking=True)
        self.copied_grad.copy_(self.source, non_blocking=True)

    def store(self) -> None:
        """Copies the parameter back."""
        self.param.copy_(self.copied, non_blocking=True)
        del self.param, self.source


class Lane:
    """Copies between the host and one device, on a stream beside the current one."""

    def __init__(self, device: torch.device):
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def begin(self) -> None:
        """Lets the copies wait for the gradients."""
        if self.stream:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))

    def end(self) -> None:
        """Lets the current stream wait for the copies."""
        if self.stream:
            torch.cuda.current_stream(self.device).wait_stream(self.stream)

    def fetch(self, batch: Batch) -> torch.cuda.Event | None:
        """Copies to the host. Returns an event to wait for."""
        with torch.cuda.stream(self.stream):
            for h in batch.held:
                h.fetch()  # type: ignore[attr-defined]
            return self.stream.record_event() if self.stream else None

    def store(self, batch: Batch) -> None:
        """Copies to the device."""
        with torch.cuda.stream(self.stream):
            for h in batch.held:
                h.store()  # type: ignore[attr-defined]


class Offloaded(Stepped):
    """Base of the classes that Offload makes."""

    gpu_fraction: float
    optimizer: type[Stepped]

    def __reduce__(self) -> Any:
        # No module has the class.
        return _empty, (self.optimizer, self.gpu_fraction), self.__getstate__()

    def _check(self, group: Group) -> None:
        super()._check(group)
        if group.get("capturable"):
            raise ValueError(f"{self.where}: capturable is True, expected False")
        for i, param in enumerate(group["params"]):
            if is_distributed(param):
                raise TypeError(f"{self.where}: params[{i}] is a DTensor, expected a tensor")

    def on_host(self, param: Tensor) -> bool:
        """True if the state of a parameter is in host memory."""
        if not hasattr(self, "_places"):
            self._places: dict[Tensor, bool] = {}
            self._copies: dict[Tensor, Copies] = {}
            self._lanes: dict[torch.device, Lane] = {}
        if param not in self._places:
            self._place()
        return self._places[param]

    def _place(self) -> None:
        """Places new parameters: on the GPU until its fraction is full."""
        params = [p for group in self.param_groups for p in group["params"]]
        room = self.gpu_fraction * sum(p.numel() for p in params)
        room -= sum(p.numel() for p, host in self._places.items() if not host)
        for p in params:
            if p not in self._places:
                self._places[p] = p.numel() > room
                room -= 0 if self._places[p] else p.numel()

    def _home(self, param: Tensor) -> torch.device:
        return torch.device("cpu") if self.on_host(param) else param.device

    def _held(self, param: Tensor, grad: Tensor, buffers: list[Tensor]) -> Held:
        if not self.on_host(param):
            return super()._held(param, grad, buffers)
        if param not in self._copies:
            self._copies[param] = Copies(local(param))
        self._lanes.setdefault(param.device, Lane(param.device))
        return self._copies[param].of(local(param), grad, buffers)

    def _batches(self) -> list[Batch]:
        self._elements = 0
        return super()._batches()

    def _part(self, param: Tensor) -> tuple[Any, ...]:
        if not self.on_host(param):
            return ()
        self._elements += param.numel()
        return param.device, (self._elements - 1) // CHUNK

    def _run(self, batches: list[Batch]) -> None:
        """Updates the GPU's part; meanwhile copies chunks to the host, updates and returns them."""
        host = [b for b in batches if isinstance(b.held[0], Copies)]
        lanes = [self._lanes[b.held[0].param.device] for b in host]  # type: ignore[attr-defined]
        for lane in {*lanes}:
            lane.begin()
        fetched = [lane.fetch(b) for lane, b in zip(lanes, host)]
        super()._run([b for b in batches if not isinstance(b.held[0], Copies)])
        for lane, event, b in zip(lanes, fetched, host):
            if event:
                event.synchronize()
            b.run()
            lane.store(b)
        for lane in {*lanes}:
            lane.end()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state_dict; what is the host's does not pass through the GPU."""
        own = [p for group in self.param_groups for p in group["params"]]
        saved = [i for group in state_dict["param_groups"] for i in group["params"]]
        state = state_dict["state"]
        host = {i: p for i, p in zip(saved, own) if i in state and self.on_host(p)}
        rest = {i: x for i, x in state.items() if i not in host}
        super().load_state_dict(state_dict | {"state": rest})
        for i, p in host.items():
            self.state[p] = {
                key: x.detach().to("cpu", x.dtype if key == "step" else p.dtype, copy=True)
                for key, x in state[i].items()
            }


def Offload(optimizer: type[T], *, gpu_fraction: float) -> type[T]:
    """Makes a class of an optimizer that keeps a part of its state in host memory.

        optimizer = kf.optim.Offload(kf.optim.AdamW, gpu_fraction=0.25)(model.parameters())

    The C kernels update that part while the GPU updates the rest. A step copies the parameters
    and gradients of that part to the host, and the parameters back.

    Args:
        optimizer: class of kf.optim
        gpu_fraction: fraction of the state, between 0 and 1, that stays on the GPU

    Raises:
        TypeError: the class is not of kf.optim.
        ValueError: the fraction is not between 0 and 1.
    """
    if not (isinstance(optimizer, type) and issubclass(optimizer, Stepped)):
        raise TypeError(f"kf.optim.Offload: optimizer is {optimizer}, expected a class of kf.optim")
    if not 0 <= gpu_fraction <= 1:
        raise ValueError(
            f"kf.optim.Offload: gpu_fraction is {gpu_fraction}, expected at least 0 and at most 1"
        )
    name = f"Offload({optimizer.__name__})"
    members = {"gpu_fraction": gpu_fraction, "optimizer": optimizer}
    return type(name, (Offloaded, optimizer), members)


def _empty(optimizer: type[T], gpu_fraction: float) -> T:
    """Makes the object that pickle and copy then fill."""
    own = Offload(optimizer, gpu_fraction=gpu_fraction)
    return own.__new__(own)
