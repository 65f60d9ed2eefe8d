# SPDX-License-Identifier: Apache-2.0
"""Launchers of ops over an axis."""

from kernel_fusion.kernels._groups import Group

_group = Group("reduction")
__getattr__, __dir__ = _group.__getattr__, _group.__dir__
