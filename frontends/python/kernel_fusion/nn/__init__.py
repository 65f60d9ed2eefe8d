# SPDX-License-Identifier: Apache-2.0
"""PyTorch modules over kf's ops.

Modules that torch.nn has are its subclasses with the same arguments, parameters and state_dict, so
a model may use either. Norms, Linear and Dropout take a fused activation: LayerNorm(8,
activation="gelu"). Such a module is no instance of torch.nn's class. A module refuses options that
it cannot honour when it is made. `inplace` is accepted, but computes out of place.
"""

from kernel_fusion.nn import activations
from kernel_fusion.nn.activations import *  # noqa: F403
from kernel_fusion.nn.fused import (
    Embedding,
    FusedGELU,
    FusedLayerNormActivation,
    FusedReLU,
    FusedSwiGLU,
    RotaryEmbedding,
)
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
from kernel_fusion.nn.multihead import MultiheadAttention
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
from kernel_fusion.nn.routing import sdpa

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
    "Embedding",
    "FusedGELU",
    "FusedLayerNormActivation",
    "FusedReLU",
    "FusedSwiGLU",
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
    "MultiheadAttention",
    "NLLLoss",
    "PReLU",
    "RMSNorm",
    "ReGLU",
    "RotaryEmbedding",
    "SmoothL1Loss",
    "Softmax",
    "SwiGLU",
    "sdpa",
]
__all__ += activations.__all__
