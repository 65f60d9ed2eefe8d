# SPDX-License-Identifier: Apache-2.0
"""What a program may choose.

compile_ops    what torch.compile sees of an op that makes each element of its own: "opaque", the op itself, which calls kf's kernel; "decompose", its
               formula and its gradient's in PyTorch's functions, which Inductor computes together with their neighbours; "auto", the formula in
               torch.compile and the op in torch.export. Of sums, ops over rows and dropout it sees the op."""

compile_ops = "auto"
