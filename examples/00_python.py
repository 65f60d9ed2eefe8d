# SPDX-License-Identifier: Apache-2.0
import kernel_fusion as kf  # pip install .
import torch

x, bias = torch.randn(8, 16, requires_grad=True), torch.zeros(16)
kf.ops.bias_gelu(x, bias).sum().backward()
print(x.grad.shape, kf.ops.bias_gelu(x.detach().numpy(), bias.numpy()).dtype)
