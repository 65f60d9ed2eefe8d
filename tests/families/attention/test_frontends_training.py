# SPDX-License-Identifier: Apache-2.0
"""A GPT-2 block trains through kf's attention to PyTorch's losses, on the CPU."""

import copy

import pytest
import pytorch

torch = pytorch.load()

import torch.nn.functional as F  # noqa: E402

ROWS, WIDTH, HEADS, TOKENS, STEPS = 24, 32, 4, 50, 12


class Block(torch.nn.Module):
    """Token and position tables, one block of GPT-2, logits by the token table."""

    def __init__(self, attend):
        super().__init__()
        self.attend = attend
        self.tokens = torch.nn.Embedding(TOKENS, WIDTH)
        self.positions = torch.nn.Embedding(ROWS, WIDTH)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(WIDTH) for _ in range(3))
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.project = torch.nn.Linear(WIDTH, WIDTH)
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions.weight
        q, k, v = (
            t.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for t in self.qkv(self.norms[0](x)).chunk(3, -1)
        )
        heads = self.attend(q, k, v, is_causal=True)
        x = x + self.project(heads.transpose(1, 2).flatten(-2))
        x = x + self.down(F.gelu(self.up(self.norms[1](x)), approximate="tanh"))
        return self.norms[2](x) @ self.tokens.weight.mT


def losses(model, batches):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found = []
    for tokens in batches:
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return torch.tensor(found)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_block(kf, compiled):
    torch.manual_seed(0)
    theirs = Block(F.scaled_dot_product_attention)
    mine = copy.deepcopy(theirs)
    mine.attend = kf.ops.scaled_dot_product_attention
    # Tokens of an arithmetic sequence, which attention learns to continue.
    steps = torch.randint(1, 5, (STEPS, 8, 1))
    batches = (torch.arange(ROWS + 1) * steps + torch.randint(TOKENS, (STEPS, 8, 1))) % TOKENS
    run = torch.compile(mine, backend="aot_eager", fullgraph=True) if compiled else mine
    got, want = losses(run, batches), losses(theirs, batches)
    assert want[-1] < 0.8 * want[0]
    assert torch.allclose(got, want, 2e-4, 2e-5), (got - want).abs().max()
