"""Compiled autograd: a backward pass that is compiled as a whole is never wrong, and what it lacks is said."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
from compiled_models import assert_same, names, recorded, train_step
from debugger_traces import dump_of
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))

    def forward(self, x):
        return self.layers(x).exp().sum()


def by_context(model, x):
    """The backward pass alone is compiled as a whole."""
    run = torch.compile(model, backend="aot_eager")
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
        train_step(model, run, x)


def by_configuration(model, x):
    """A compiled function runs a backward pass."""
    model.zero_grad()
    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(lambda: model(x).backward(), backend="aot_eager")()


def steps(model, x, way, tool=None):
    """Gradients of three training steps; the optimiser is left out, so that all are alike."""
    results = []
    for _ in range(3):
        with tool.capture(model) if tool is not None else contextlib.nullcontext():
            way(model, x)
        results.append([parameter.grad.clone() for parameter in model.parameters()])
    return results


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("way", [by_context, by_configuration])
def test_records_are_those_of_the_eager_run_and_results_are_unchanged(debugger, way, level):
    model, x = Model(), torch.randn(2, 4)
    twin = copy.deepcopy(model)
    expected = steps(model, x, way)
    eager = recorded(debugger, model, model, x, level=level)
    torch._dynamo.reset()
    tool = debugger(level=level)
    found = steps(twin, x, way, tool)
    for pair in zip(expected, found, strict=True):
        assert all(torch.equal(*tensors) for tensors in zip(*pair, strict=True))
    for step in range(3):
        compiled = dump_of(tool, step)
        calls = [name for name in names(compiled.data) if "_set_multithreading_enabled" not in name]
        assert calls == names(eager.data)
        for name in calls:
            assert_same(eager.data[name], compiled.data[name], name)
        assert "compiled as a whole" in compiled.coverage["notes"]["compiled autograd"]


def test_gradients_are_right_where_the_backward_pass_alone_is_compiled_as_a_whole(debugger):
    """The graph with probes ran beside: what its backward graph would have recorded is missing, and that is said."""
    model, x = Model(), torch.randn(2, 4)
    results = []
    for recording in (False, True):
        torch._dynamo.reset()
        one = copy.deepcopy(model)
        run = torch.compile(one, backend="aot_eager_decomp_partition")
        tool = debugger(level="L1") if recording else None
        with tool.capture(one) if tool is not None else contextlib.nullcontext():
            loss = run(x)
            with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
                loss.backward()
        results.append([parameter.grad for parameter in one.parameters()])
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))
    dump = dump_of(tool)
    assert "Functional.gelu.0.forward" in dump.data
    assert "graphs that ran beside the program, may be missing" in dump.coverage["notes"]["compiled autograd"]
