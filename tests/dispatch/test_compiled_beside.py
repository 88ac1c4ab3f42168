"""A compiled model beside the tool: its graphs stay whole, and a debugger costs one more of them, not one per step."""

from __future__ import annotations

import pytest
import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.act = nn.ReLU()

    def forward(self, x):
        return x + self.act(self.linear(x))


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_whole_graph_survives_more_steps_than_the_recompile_limit(debugger, level, warm):
    torch._dynamo.reset()
    graphs = []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    model = nn.Sequential(Residual(), Residual())
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    x = torch.randn(2, 4)
    expected = model(x)
    if warm:
        compiled(x)
    tool = debugger(level=level)
    for _ in range(torch._dynamo.config.recompile_limit + 4):
        with tool.capture(model):
            result = compiled(x)
        assert torch.equal(result, expected)
    assert torch.equal(compiled(x), expected)
    assert len(graphs) <= 2
