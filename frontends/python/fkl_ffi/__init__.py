# SPDX-License-Identifier: Apache-2.0
"""Another name of kernel_fusion.fkl; fkl_ffi.operations and fkl_ffi.pytorch are its modules."""

from kernel_fusion.fkl import JITCompiler, Kernel, Stream, Tensor, execute_operations

__all__ = ["JITCompiler", "Kernel", "Stream", "Tensor", "execute_operations"]
