# SPDX-License-Identifier: Apache-2.0
"""Modules over kf's ops. Those that torch.nn has are its subclasses, with the same arguments, parameters and state_dict: a model may take one in
place of the other. A norm or a dropout takes its activation with it: LayerNorm(8, activation="gelu"). What a module cannot do as PyTorch does it
refuses when it is made. An `inplace` is accepted, and computes out of place."""

from kernel_fusion.nn import activations
from kernel_fusion.nn.activations import *  # noqa: F403
from kernel_fusion.nn.layers import (
    GEGLU,
    GLU,
    ActGLU,
    Dropout,
    Linear,
    LogSoftmax,
    PReLU,
    ReGLU,
    Softmax,
    SwiGLU,
)
from kernel_fusion.nn.losses import (
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
    SmoothL1Loss,
)
from kernel_fusion.nn.norms import (
    AddLayerNorm,
    AddRMSNorm,
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GemmaRMSNorm,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
    RMSNorm,
)

__all__ = [
    "GEGLU",
    "GLU",
    "ActGLU",
    "AddLayerNorm",
    "AddRMSNorm",
    "BCEWithLogitsLoss",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "CrossEntropyLoss",
    "Dropout",
    "GemmaRMSNorm",
    "GroupNorm",
    "HuberLoss",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "KLDivLoss",
    "L1Loss",
    "LayerNorm",
    "Linear",
    "LogSoftmax",
    "MSELoss",
    "NLLLoss",
    "PReLU",
    "RMSNorm",
    "ReGLU",
    "SmoothL1Loss",
    "Softmax",
    "SwiGLU",
]
__all__ += activations.__all__
