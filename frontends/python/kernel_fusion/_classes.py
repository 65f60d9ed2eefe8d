# SPDX-License-Identifier: Apache-2.0
"""Names of the modules of kf.nn that are made of the table: PyTorch's, where it has the same."""

from kernel_fusion import _table

# As torch.nn writes them; others are their words with capitals.
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
    """{class: activation}"""
    known = TORCH | OWN
    return {
        known.get(name) or "".join(w.capitalize() for w in name.split("_")): name
        for name in _table.activations()
        if name != "none"
    }
