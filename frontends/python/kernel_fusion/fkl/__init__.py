# SPDX-License-Identifier: Apache-2.0
"""Chains of operations that run as one kernel, over kf.fuse.

    from kernel_fusion.fkl import Stream, Tensor, execute_operations
    from kernel_fusion.fkl.operations import Add, Mul, TensorRead, TensorWrite

    s, i, o = Stream(), Tensor(array), Tensor(array.shape)
    execute_operations(s, TensorRead(i), Mul(2.0), Add(1.0), TensorWrite(o))
    s.sync()

The module can be imported as fkl_ffi too. kernel_fusion.fkl.pytorch has functions with gradients.
"""

from kernel_fusion.fkl._execute import Stream, Tensor, execute_operations
from kernel_fusion.fkl._jit import JITCompiler, Kernel

__all__ = ["JITCompiler", "Kernel", "Stream", "Tensor", "execute_operations"]
