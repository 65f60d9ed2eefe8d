# SPDX-License-Identifier: Apache-2.0
"""kf's ops for TensorFlow: kf.fused_add_relu(x, y), with gradients, also inside tf.function.

    import kernel_fusion_tensorflow as kf
    import tensorflow as tf

    @tf.function
    def step(x, y):
        return kf.fused_add_relu(x, y)

Every function of kf.ops is a function of this module, with or without fused_ in front, and so are
its aliases. kf.layers has layers of Keras.
"""

import importlib
from typing import Any

from kernel_fusion import get_threads, info, set_threads
from kernel_fusion._functional import names
from kernel_fusion._info import version

try:
    import tensorflow  # noqa: F401
except ImportError as e:
    raise ImportError(
        "kernel_fusion_tensorflow needs TensorFlow: pip install tensorflow, or tensorflow-cpu"
    ) from e
from kernel_fusion_tensorflow._composed import FUNCTIONS
from kernel_fusion_tensorflow._functions import lookup
from kernel_fusion_tensorflow._library import register_op

__all__ = ["get_threads", "info", "layers", "register_op", "set_threads"]
__version__ = version()


def __getattr__(name: str) -> Any:
    """Makes a function, or imports the layers, at the first access."""
    if name.startswith("__"):
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    found = importlib.import_module(f"{__name__}.layers") if name == "layers" else lookup(name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*__all__, *names(), *FUNCTIONS})
