# SPDX-License-Identifier: Apache-2.0
"""kf's ops for JAX, such as kernel_fusion.jax.bias_gelu(x, bias)."""

from kernel_fusion import _table
from kernel_fusion.jax import _public


def __getattr__(name):
    if name in _table.functions():
        found = globals()[name] = _public.make(*_table.functions()[name])
        return found
    raise AttributeError(name)
