# SPDX-License-Identifier: Apache-2.0
"""Class names of kf.nn's activation modules: torch.nn's names where it has the activation."""

from kernel_fusion import _table

# Spellings of torch.nn. Other activations are converted to CamelCase.
TORCH = {
    "relu": "ReLU",
    "leaky_relu": "LeakyReLU",
    "relu6": "ReLU6",
    "elu": "ELU",
    "selu": "SELU",
    "gelu": "GELU",
    "silu": "SiLU",
    "sigmoid": "Sigmoid",
    "hardsigmoid": "Hardsigmoid",
    "hardswish": "Hardswish",
    "tanh": "Tanh",
    "hardtanh": "Hardtanh",
    "softplus": "Softplus",
    "softsign": "Softsign",
    "mish": "Mish",
}
OWN = {"gelu_tanh": "GELUTanh", "quick_gelu": "QuickGELU", "relu_squared": "ReLUSquared"}


def activations() -> dict[str, str]:
    """Returns {class name: activation}."""
    known = TORCH | OWN
    return {
        known.get(name) or "".join(w.capitalize() for w in name.split("_")): name
        for name in _table.activations()
        if name != "none"
    }
