"""Calls that Dynamo traces in a special way: with probes they break no graph, raise nothing and have eager's names."""

from __future__ import annotations

import pytest
import torch
from compiled_models import recorded
from torch import nn


class Calling(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, x):
        return self.call(x)


def dumps(debugger, call):
    model, x = Calling(call), torch.randn(4, 4, requires_grad=True)
    eager = recorded(debugger, model, model, x, level="L1", risk_level="ALL")
    torch._dynamo.reset()
    run = torch.compile(model, backend="aot_eager", fullgraph=True)
    return eager, recorded(debugger, model, run, x, level="L1", risk_level="ALL")


WRITTEN_IN_PYTHON = {
    "unflatten": lambda x: x.unflatten(0, (2, 2)).sum(),
    "split": lambda x: x.split(2)[1].sum(),
    "norm": lambda x: x.norm(p=1, dim=0).sum(),
    "lu": lambda x: x.lu()[0].sum(),
    "stft": lambda x: x.flatten().stft(8, return_complex=True, window=torch.ones(8)).abs().sum(),
    "reversed operators": lambda x: ((1 - x) * (2**x) / (1 // (x.detach() + 9) + 1)).sum(),
    "length": lambda x: x.sum() * len(x),
}


@pytest.mark.parametrize("name", WRITTEN_IN_PYTHON)
def test_methods_of_tensor_that_are_written_in_python_are_traced_as_without_probes(debugger, name):
    eager, compiled = dumps(debugger, WRITTEN_IN_PYTHON[name])
    assert list(compiled.data) == list(eager.data)


def test_data_of_a_tensor_is_no_call(debugger):
    eager, compiled = dumps(debugger, lambda x: (x.data * x).sum())
    assert list(compiled.data) == list(eager.data)


def test_builtin_max_of_tensors_is_the_operator_that_dynamo_makes_of_it(debugger):
    eager, compiled = dumps(debugger, lambda x: max(x.sum(), x.sum() * 2))
    assert "Tensor.gt.0.forward" in eager.data
    assert "Torch.maximum.0.forward" in compiled.data
