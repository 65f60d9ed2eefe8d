# SPDX-License-Identifier: Apache-2.0
"""Launchers of ops with broadcast operands, over rows, and of losses."""

from kernel_fusion.kernels._groups import Group

_group = Group("fusion")
__getattr__, __dir__ = _group.__getattr__, _group.__dir__
