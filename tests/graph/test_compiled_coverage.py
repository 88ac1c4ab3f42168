"""coverage.json tells which graphs were recorded, where graphs broke, and what ran eagerly or without probes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from compiled_models import MODELS, Broken, train_step
from torch import nn


def compiled_notes(tool, step: int = 0) -> dict:
    folder = next((Path(tool._session.config.dump_path) / f"step{step}").iterdir())
    return json.loads((folder / "coverage.json").read_text())["notes"].get("compiled", {})


def line_of(function, text: str) -> str:
    """``file:line`` of the line of ``function`` that contains ``text``."""
    import inspect

    lines, first = inspect.getsourcelines(function)
    (at,) = (number for number, line in enumerate(lines, first) if text in line)
    return f"{inspect.getsourcefile(function)}:{at}"


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_each_graph_is_listed_with_its_function_runs_calls_and_probes(debugger, level):
    model, x = MODELS["operators"]()
    run = torch.compile(model, backend="aot_eager")
    tool = debugger(level=level)
    for _ in range(2):
        with tool.capture(model):
            train_step(model, run, x)
            train_step(model, run, x)
    for step in range(2):
        (graph,) = compiled_notes(tool, step)["graphs"]
        assert graph["function"].endswith("forward")
        assert graph["at"] == line_of(type(model).forward, "def forward")
        assert graph["runs"] == 2
        assert 0 < graph["calls"] < graph["probes"]


def test_graph_breaks_name_the_users_line_and_the_reason(debugger):
    model, x = MODELS["graph breaks"]()
    tool = debugger(level="L1")
    with tool.capture(model):
        train_step(model, torch.compile(model, backend="aot_eager"), x)
    found = compiled_notes(tool)
    breaks = {entry["at"]: entry["reason"] for entry in found["graph_breaks"]}
    assert "graph_break()" in breaks[line_of(Broken.forward, "graph_break()")]
    assert "disable" in breaks[line_of(Broken.forward, "self.eagerly(h)")]
    assert len(found["graphs"]) == 3


@torch._dynamo.config.patch(suppress_errors=True)
def test_what_ran_eagerly_is_listed_with_the_reason(debugger):
    def failing(graph, inputs):
        raise RuntimeError("no such target")

    model = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    tool = debugger(level="L1")
    with tool.capture(model):
        torch.compile(model, backend=failing)(torch.randn(2, 4))
    reasons = [entry["reason"] for entry in compiled_notes(tool)["ran_eagerly"]]
    assert reasons == ["RuntimeError: no such target", "an error was suppressed during compilation"]


def test_a_backend_that_fails_on_probes_is_listed_with_its_error(debugger):
    def picky(graph, inputs):
        if any("msprobe" in node.name for node in graph.graph.nodes):
            raise NotImplementedError("only plain graphs")
        return graph.forward

    model, x = MODELS["operators"]()
    tool = debugger(level="L1")
    with tool.capture(model):
        torch.compile(model, backend=picky)(x)
    (entry,) = compiled_notes(tool)["ran_without_probes"]
    assert entry["reason"] == "NotImplementedError: only plain graphs"
    assert entry["at"] == line_of(type(model).forward, "def forward")


def test_a_stance_that_keeps_the_compiler_away_is_told(debugger):
    model, x = MODELS["operators"]()
    tool = debugger(level="L1")
    with tool.capture(model), torch.compiler.set_stance("force_eager"):
        torch.compile(model, backend="aot_eager")(x)
    (entry,) = compiled_notes(tool)["ran_eagerly"]
    assert 'set_stance("force_eager")' in entry["reason"]


def test_a_run_without_compiled_functions_says_nothing_of_them(debugger):
    tool = debugger(level="L1")
    with tool.capture():
        torch.randn(2).exp()
    assert not compiled_notes(tool)
