# SPDX-License-Identifier: Apache-2.0
"""The rules of the optimizers, one per op."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Group = dict[str, Any]  # options of a group of parameters
# Numbers of a state, by their first value: the steps, the product of the momenta of all steps.
FIRST = {"step": 0.0, "mu_product": 1.0}


def always(group: Group) -> bool:
    return True


@dataclass(frozen=True)
class Buffer:
    """A tensor of a parameter's state, of the parameter's shape and dtype.

    Args:
        key: name in the state, PyTorch's.
        operand: name in the op; empty: the same.
        when: True if a group keeps it. Otherwise each call gets zeros.
        fill: option with its first value; empty: 0.
    """

    key: str
    operand: str = ""
    when: Callable[[Group], bool] = always
    fill: str = ""


@dataclass(frozen=True)
class Rule:
    """The state that an op updates, and the options that it reads.

    Args:
        op: its name.
        buffers: tensors of the state, in PyTorch's order.
        values: options that are its scalars.
        numbers: of FIRST, what the state has for the whole parameter.
        decays: True if weight decay is a call of its own.
        whole: True if an update reads sums over the whole parameter, such as norms.
    """

    op: str
    buffers: tuple[Buffer, ...]
    values: tuple[str, ...]
    numbers: tuple[str, ...] = ("step",)
    decays: bool = False
    whole: bool = False

    def scalars(self, group: Group) -> dict[str, Any]:
        """Returns values of a call, also some that the op has not; tensors as they are."""
        found = {name: group[name] for name in self.values}
        if "betas" in found:
            found["beta1"], found["beta2"] = map(float, found.pop("betas"))
        flags = {name: int(x) for name, x in found.items() if isinstance(x, bool)}
        found |= flags | {"maximize": int(group["maximize"])}
        return found | {"decoupled": int(group.get("decoupled_weight_decay", False))}


MOMENTS = (Buffer("exp_avg"), Buffer("exp_avg_sq"))
LARGEST = (*MOMENTS, Buffer("max_exp_avg_sq"))
_adam = ("lr", "betas", "eps", "weight_decay")
ADAM = {  # keys: amsgrad, decoupled_weight_decay
    (False, False): Rule("adam", MOMENTS, _adam),
    (False, True): Rule("adamw", MOMENTS, _adam),
    (True, False): Rule("amsgrad", LARGEST, _adam),
    (True, True): Rule("amsgradw", LARGEST, _adam),
}
_nadam = (*_adam, "momentum_decay")
NADAM = {  # key: decoupled_weight_decay
    False: Rule("nadam", MOMENTS, _nadam, numbers=tuple(FIRST)),
    True: Rule("nadam", MOMENTS, _nadam, numbers=tuple(FIRST), decays=True),
}
RADAM = Rule("radam", MOMENTS, _adam)
ADAGRAD = Rule(
    "adagrad",
    (Buffer("sum", operand="sum_sq", fill="initial_accumulator_value"),),
    ("lr", "lr_decay", "eps", "weight_decay"),
)
_sgd = ("lr", "weight_decay")
SGD = {  # key: has momentum
    False: Rule("sgd", (), _sgd, numbers=()),
    True: Rule(
        "sgd_momentum",
        (Buffer("momentum_buffer"),),
        (*_sgd, "momentum", "dampening", "nesterov"),
        numbers=(),
    ),
}
_rmsprop = ("lr", "alpha", "eps", "weight_decay")
RMSPROP = {  # key: has momentum or is centered
    False: Rule("rmsprop", (Buffer("square_avg"),), _rmsprop),
    True: Rule(
        "rmsprop_momentum",
        (
            Buffer("square_avg"),
            Buffer("momentum_buffer", when=lambda group: group["momentum"] > 0),
            Buffer("grad_avg", when=lambda group: group["centered"]),
        ),
        (*_rmsprop, "momentum", "centered"),
    ),
}
LION = Rule("lion", MOMENTS[:1], ("lr", "betas", "weight_decay"), numbers=())


@dataclass(frozen=True)
class LambRule(Rule):
    """The rule of LAMB, whose op has one limit of trust ratios; 0: no limit."""

    def scalars(self, group: Group) -> dict[str, Any]:
        most = 0.0 if group["max_trust"] is None else float(group["max_trust"])
        if group["trust_clip"]:
            most = min(most or 1.0, 1.0)
        return super().scalars(group) | {"max_trust": most}


LAMB = LambRule("lamb", MOMENTS, (*_adam, "bias_correction"), whole=True)
