"""`self_check` runs each graph without probes, too, and tells whether the results have the same bits."""

from __future__ import annotations

import copy
import weakref

import pytest
import torch
from compiled_models import MODELS, train_step
from test_compiled_coverage import compiled_notes
from torch import nn


def checked(debugger, model, x, backend, steps=1, **config):
    tool = debugger(level="L1", self_check=True, **config)
    run = torch.compile(model, backend=backend)
    for _ in range(steps):
        with tool.capture(model):
            result = train_step(model, run, x)
    return [graph["self_check"] for graph in compiled_notes(tool, steps - 1)["graphs"]], result


@pytest.mark.parametrize("name", ["operators", "graph breaks"])
def test_results_and_gradients_of_the_first_runs_are_compared(debugger, name):
    model, x = MODELS[name]()
    found, _ = checked(debugger, model, x, "aot_eager", steps=4)
    assert set(found) == {"bitwise equal: results of 2 runs, gradients of 2 runs"}


def test_a_compiler_that_computes_otherwise_with_probes_is_found(debugger):
    def shifting(graph, inputs):
        probed = any("msprobe" in node.name for node in graph.graph.nodes)
        return lambda *values: tuple(one + 1e-3 * probed for one in graph(*values))

    model = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    tool = debugger(level="L1", self_check=True)
    with tool.capture(model):
        torch.compile(model, backend=shifting)(torch.randn(2, 4))
    notes = compiled_notes(tool)
    assert notes["graphs"][0]["self_check"] == "1 of 1 results differ, the first is number 0"
    assert notes["perturbed"].startswith("self_check: results of compiled graphs")


@pytest.mark.parametrize("name", ["operators", "in-place", "convolutions"])
def test_the_check_changes_neither_results_nor_random_numbers(debugger, name):
    model, x = MODELS[name]()
    twin = copy.deepcopy(model)
    torch.manual_seed(7)
    expected = train_step(model, torch.compile(model, backend="aot_eager"), x)
    buffers = [buffer.clone() for buffer in model.buffers()]
    state = torch.get_rng_state()
    torch.manual_seed(7)
    _, found = checked(debugger, twin, x, "aot_eager")
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(*pair) for pair in zip(expected, found, strict=True))
    assert all(torch.equal(*pair) for pair in zip(buffers, twin.buffers(), strict=True))


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))

    def forward(self, x):
        return self.model(x).sum()


@pytest.mark.parametrize(("backend", "both"), [("eager", False), ("aot_eager", True)])
def test_both_forms_of_a_graph_that_draws_random_numbers_draw_the_same(debugger, backend, both):
    (text,), _ = checked(debugger, Noisy(), torch.randn(2, 4), backend, steps=2)
    assert text == "bitwise equal: results of 2 runs" + ", gradients of 2 runs" * both


def test_a_graph_that_writes_to_its_inputs_is_run_again_on_copies(debugger):
    model, x = MODELS["convolutions"]()  # the running statistics of the norm
    texts, _ = checked(debugger, model, x, "aot_eager", steps=2)
    assert texts == ["bitwise equal: results of 2 runs, gradients of 2 runs"]
    assert int(model.norm.num_batches_tracked) == 2


def test_nothing_of_the_check_is_kept_alive(debugger, without_collector):
    model, x = MODELS["operators"]()
    run = torch.compile(model, backend="aot_eager")
    tool = debugger(level="L1", self_check=True)
    with tool.capture(model):
        loss = run(x)
        seen = weakref.ref(loss)
        loss.backward()
        del loss
        assert seen() is None
