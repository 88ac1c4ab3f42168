"""What scope, list and a left-out call mean for records, their hierarchy and their checksums."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import torch
from torch import nn

from msprobe.store import read_dump


def files_of(tool):
    folder = next(Path(tool._session.config.dump_path, "step0").iterdir())
    return read_dump(folder).data, json.loads((folder / "construct.json").read_text())


def test_a_module_that_began_before_the_scope_is_no_record(debugger):
    inner = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    scope = ["Module.0.1.Tanh.forward.0", "Module.1.Linear.forward.0"]
    tool = debugger(level="L0", statistics={"scope": scope})
    with tool.capture(model := nn.Sequential(inner, nn.Linear(2, 2), nn.ReLU())):
        model(torch.ones(1, 2))
    data, construct = files_of(tool)
    assert list(data) == scope
    assert all({"input_args", "output"} <= record.keys() for record in data.values())
    assert construct["Module.0.1.Tanh.forward.0"] == "Module.0.Sequential.forward.0"


def test_the_hierarchy_has_every_module_and_no_call_that_is_left_out(debugger):
    tool = debugger(level="mix", statistics={"list": ["tanh"]})
    with tool.capture(model := nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Tanh()))):
        model(torch.ones(1, 2))
    data, construct = files_of(tool)
    assert list(data) == ["Torch.tanh.0.forward"]
    assert construct == {
        "Module.0.Sequential.forward.0": None,
        "Module.0.0.Linear.forward.0": "Module.0.Sequential.forward.0",
        "Module.0.1.Tanh.forward.0": "Module.0.Sequential.forward.0",
        "Torch.tanh.0.forward": "Module.0.1.Tanh.forward.0",
    }


def test_a_list_entry_for_an_in_place_module_selects_nothing_after_it(debugger):
    tool = debugger(level="mix", statistics={"list": ["relu"]})
    model = nn.Sequential()
    model.add_module("first", nn.Linear(2, 2))
    model.add_module("relu", nn.ReLU(inplace=True))
    model.add_module("last", nn.Linear(2, 2))
    with tool.capture(model):
        model(torch.ones(1, 2)).sum().backward()
        model(torch.ones(1, 2)).sum().backward()
    data, _ = files_of(tool)
    assert {name.split(".")[1] for name in data} == {"relu"}
    assert "Module.relu.ReLU.backward.1" in data


def test_a_checksum_is_of_the_value_before_it_is_changed_in_place(debugger):
    tool = debugger(level="L1", risk_level="ALL", statistics={"summary_mode": "md5"})
    x = torch.rand(512, 512)
    with tool.capture():
        y = torch.exp(x)
        before = y.numpy().tobytes()
        y.add_(1)
    data, _ = files_of(tool)
    assert data["Torch.exp.0.forward"]["output"][0]["md5"] == f"{zlib.crc32(before):08x}"
    assert data["Tensor.add_.0.forward"]["output"][0]["md5"] == f"{zlib.crc32(y.numpy().tobytes()):08x}"
