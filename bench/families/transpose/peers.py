# SPDX-License-Identifier: Apache-2.0
"""Copies to another layout in PyTorch."""


def _swapped(act, t, s, drop):
    return t["x"].transpose(1, 2).contiguous()


FORWARD = dict.fromkeys(("transpose", "nchw_to_nhwc", "nhwc_to_nchw"), _swapped)
