# SPDX-License-Identifier: Apache-2.0
"""PyTorch optimizers over kf's ops, and clipping of gradients.

Optimizers that torch.optim has are its subclasses with the same arguments, state and state_dict, so
a training script may use either. A step updates all parameters of a group in one call per device
and dtype.
"""

from kernel_fusion.optim._offload import Offload
from kernel_fusion.optim.classes import SGD, Adagrad, Adam, AdamW, NAdam, RAdam, RMSprop
from kernel_fusion.optim.clipping import clip_grad_norm_
from kernel_fusion.optim.lamb import LAMB
from kernel_fusion.optim.lion import Lion

__all__ = [
    "LAMB",
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "Lion",
    "NAdam",
    "Offload",
    "RAdam",
    "RMSprop",
    "clip_grad_norm_",
]
