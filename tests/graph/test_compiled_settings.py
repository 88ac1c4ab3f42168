"""Ways to compile and to run: options, dynamic shapes, no gradients, shared weights, and both faces of the debugger."""

from __future__ import annotations

import copy

import pytest
import torch
from compiled_models import assert_same, names, recorded, train_step
from debugger_traces import dump_of
from model_table import TABLE
from torch import nn


def small():
    return nn.Sequential(nn.Linear(4, 4), nn.GELU())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_without_gradients_the_records_are_those_of_the_eager_run(debugger, backend, without):
    model, x = small(), torch.randn(2, 4)
    dumps = []
    for run in (model, torch.compile(model, backend=backend)):
        tool = debugger(level="mix")
        with tool.capture(model), without():
            run(x)
        dumps.append(dump_of(tool))
    eager, found = dumps
    assert list(found.data) == list(eager.data)
    assert all("backward" not in name for name in found.data)
    for name, record in eager.data.items():
        assert_same(record, found.data[name], name)


@pytest.mark.parametrize("how", ["mark_dynamic", "dynamic"])
def test_sizes_that_change_are_recorded_from_one_graph(debugger, how):
    model = small()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    run = torch.compile(model, backend=backend, fullgraph=True, dynamic=True if how == "dynamic" else None)
    tool = debugger(level="mix")
    for size in (3, 5, 7):
        x = torch.randn(size, 4)
        if how == "mark_dynamic":
            torch._dynamo.mark_dynamic(x, 0)
        with tool.capture(model):
            run(x).sum().backward()
    assert len(graphs) == 1
    shapes = [dump_of(tool, step).data["Functional.linear.0.forward"]["input_args"][0]["shape"] for step in range(3)]
    assert shapes == [[3, 4], [5, 4], [7, 4]]


def test_a_backend_keeps_its_options(debugger):
    seen = []

    def backend(graph, inputs, options=None):
        seen.append((options, any("msprobe" in node.name for node in graph.graph.nodes)))
        return graph.forward

    model, x = small(), torch.randn(2, 4)
    run = torch.compile(model, backend=backend, options={"speed": 9}, fullgraph=True)
    run(x)
    with debugger(level="L1").capture(model):
        run(x)
    assert seen == [({"speed": 9}, False), ({"speed": 9}, True)]


def test_the_debugger_may_be_made_after_the_model_was_compiled_and_run(debugger):
    model, x = TABLE["blocks"].make()
    twin = copy.deepcopy(model)
    run = torch.compile(twin, backend="aot_eager", fullgraph=True)
    train_step(twin, run, x)
    eager = recorded(debugger, model, model, x, level="mix")
    found = recorded(debugger, twin, run, x, level="mix")
    assert names(found.data) == names(eager.data)


def test_start_stop_and_step_record_what_the_context_manager_does(debugger):
    model, x = TABLE["tied"].make()
    run = torch.compile(model, backend="aot_eager")
    tool = debugger(level="mix")
    with tool.capture(model):
        train_step(model, run, x)
    tool.start(model)
    train_step(model, run, x)
    tool.stop()
    tool.step()
    first, second = dump_of(tool, 0).data, dump_of(tool, 1).data
    assert list(first) == list(second)
    assert first == second


class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ArithmeticError("no gradient of mine")


def in_forward(x):
    if x.shape[0] == 2:
        raise LookupError("two rows are too few")
    return x.exp()


def out_of_range(x):
    return x.exp()[:, torch.tensor([9])]


def in_backward(x):
    torch._dynamo.graph_break()
    return Raises.apply(x.exp())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("function", [in_forward, out_of_range, in_backward])
def test_an_error_of_the_program_is_that_of_the_unprobed_run(debugger, function, backend):
    run = torch.compile(function, backend=backend)
    x = torch.randn(2, 4, requires_grad=True)
    errors = []
    for tool in (None, debugger(level="L1")):
        if tool is not None:
            tool.start()
        with pytest.raises(Exception) as caught:  # noqa: PT011 - which one is compared below
            run(x).sum().backward()
        if tool is not None:
            tool.stop()
            tool.step()
        errors.append(caught)
    plain, probed = errors
    assert probed.type is plain.type
    assert str(probed.value) == str(plain.value)
    here = [[entry.lineno for entry in error.traceback if str(entry.path) == __file__] for error in errors]
    assert here[0] == here[1]
