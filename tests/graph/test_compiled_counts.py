"""Recording adds no graph break and one graph per graph; starting again and stopping compile nothing."""

from __future__ import annotations

import pytest
import torch
from compiled_models import train_step
from model_table import TABLE, compiled
from torch._dynamo.utils import counters


class Watching:
    """A backend that keeps which graphs it was given, and which of them ran: True for those with probes."""

    def __init__(self):
        self.given: list[bool] = []
        self.ran: list[bool] = []

    def __call__(self, graph, inputs):
        probed = any("msprobe" in node.name for node in graph.graph.nodes)
        self.given.append(probed)

        def run(*values):
            self.ran.append(probed)
            return graph(*values)

        return run


WHOLE = [(name, "whole") for name in ("conv", "operators", "in-place", "breaks", "blocks", "tied", "bert")]
PARTS = [(name, "parts") for name in ("operators", "blocks", "tied", "bert")]


@pytest.mark.parametrize(("name", "way"), [*WHOLE, *PARTS])
def test_graphs_and_breaks_are_those_of_the_program(debugger, name, way):
    model, x = TABLE[name].make()
    backend = Watching()
    run = compiled(name, model, way, backend)
    train_step(model, run, x)
    clean, breaks = len(backend.given), sum(counters["graph_break"].values())
    assert clean
    tool = debugger(level="mix")
    with tool.capture(model):
        train_step(model, run, x)
    assert backend.given.count(True) <= clean
    assert backend.given.count(False) == clean
    assert sum(counters["graph_break"].values()) <= 2 * breaks  # the same places, once more with probes

    compilations = len(backend.given)
    for _ in range(2):
        backend.ran.clear()
        train_step(model, run, x)
        assert set(backend.ran) == {False}  # after stop() the program's own graphs run
        backend.ran.clear()
        with tool.capture(model):
            train_step(model, run, x)
        assert set(backend.ran) == {True}
    assert len(backend.given) == compilations


def test_a_model_that_is_recorded_from_its_first_call_on_compiles_its_own_graphs_later(debugger):
    model, x = TABLE["blocks"].make()
    backend = Watching()
    run = torch.compile(model, backend=backend, fullgraph=True)
    tool = debugger(level="mix")
    for _ in range(2):
        with tool.capture(model):
            train_step(model, run, x)
        train_step(model, run, x)
    assert backend.given == [True, False]
