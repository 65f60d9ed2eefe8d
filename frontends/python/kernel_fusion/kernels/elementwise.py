# SPDX-License-Identifier: Apache-2.0
"""Launchers of ops whose tensors all have one shape."""

from kernel_fusion.kernels._groups import Group

_group = Group("elementwise")
__getattr__, __dir__ = _group.__getattr__, _group.__dir__
