"""Task structure: the hierarchy of every call and its backward, and not one value."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn


def test_structure_has_the_hierarchy_of_forward_and_backward_and_no_record(debugger):
    tool = debugger(level="mix", task="structure")
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    with tool.capture(model):
        model(torch.ones(1, 2)).sum().backward()
    folder = next(Path(tool._session.config.dump_path, "step0").iterdir())
    construct = json.loads((folder / "construct.json").read_text())
    assert json.loads((folder / "dump.json").read_text())["data"] == {}
    assert construct["Functional.linear.0.forward"] == "Module.0.0.Linear.forward.0"
    assert construct["Functional.linear.0.backward"] == "Module.0.0.Linear.backward.0"
    assert construct["Module.0.0.Linear.backward.0"] == "Module.0.Sequential.backward.0"
    assert construct["Module.0.Sequential.backward.0"] is None
    assert "Functional.linear.0.forward" in str(json.loads((folder / "stack.json").read_text()))
