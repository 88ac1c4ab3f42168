"""Code of Inductor has the records of the eager run, and the program computes the bits that it has without probes.

A probe between two operators that Inductor has fused gives each a loop of its own; where one of them is vectorised and
the other was not, functions such as tanh and erf round differently: the graph with probes runs beside the program's.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from compiled_models import recorded, train_step
from model_table import TABLE, one_layer
from test_compiled_table import assert_equal_records

FP32 = 1e-5
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_inductor")]


@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt2", "bert", "conv", "blocks", "tied"])
def test_records_of_code_of_inductor(debugger, name):
    model, x = one_layer(name) if name in ("llama", "qwen2", "gpt2", "bert") else TABLE[name].make()
    plain, twin = copy.deepcopy(model), copy.deepcopy(model)
    eager = recorded(debugger, model, model, x, level="mix")
    tool = debugger(level="mix")
    run = torch.compile(twin)
    with tool.capture(twin):
        found = train_step(twin, run, x)
    folder = next((Path(tool._session.config.dump_path) / "step0").iterdir())
    assert json.loads((folder / "coverage.json").read_text())["notes"]["compiled"]["graphs"]
    from debugger_traces import dump_of

    assert_equal_records(eager, dump_of(tool), "whole", FP32)
    expected = train_step(plain, torch.compile(plain), x)
    assert all(torch.equal(*pair) for pair in zip(expected, found, strict=True))
