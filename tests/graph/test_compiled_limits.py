"""What is not recorded of a compiled program, and that coverage.json says so."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from compiled_models import Residual, recorded
from torch import nn


class Conditional(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)).exp().sum()


def test_calls_inside_a_higher_order_operator_are_counted(debugger):
    model = Conditional()
    x = torch.randn(2, 4, requires_grad=True)
    compiled = recorded(debugger, model, torch.compile(model, backend="aot_eager"), x, level="L1")
    assert "Tensor.exp.0.backward" in compiled.data
    assert not {"Torch.sin.0.forward", "Torch.cos.0.forward"} & set(compiled.data)
    assert compiled.coverage["not_recorded"]["calls inside the higher-order operator cond of a compiled graph"] == 1


def test_calls_inside_vmap_are_counted(debugger):
    linear = nn.Linear(4, 4)

    def run(x):
        return torch.vmap(lambda row: (row * row).sum() + torch.sigmoid(row).mean())(linear(x)).exp().sum()

    x = torch.randn(3, 4)
    compiled = recorded(debugger, linear, torch.compile(run, backend="aot_eager"), x, level="L1")
    assert {"Functional.linear.0.backward", "Tensor.exp.0.backward"} <= set(compiled.data)
    assert not any("failed" in reason for reason in compiled.coverage["not_recorded"])
    assert compiled.coverage["not_recorded"]["call inside torch.vmap of a compiled graph"] >= 4


def test_a_task_that_looks_at_single_calls_says_that_it_sees_none_inside(debugger):
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    run = torch.compile(model, backend="aot_eager")
    tool = debugger(level="L1", task="nan_check")
    with tool.capture(model):
        run(torch.randn(2, 4)).exp().sum().backward()
    folder = next((Path(tool._session.config.dump_path) / "step0").iterdir())
    coverage = json.loads((folder / "coverage.json").read_text())
    assert "not recorded" in coverage["notes"]["torch.compile"]


def test_parameters_of_a_compiled_graph_have_their_gradients_at_its_end(debugger):
    model = nn.Sequential(Residual(), nn.Linear(4, 4))

    def run(x):
        return model[1](model[0](x)[0]).sum()

    compiled = recorded(debugger, model, torch.compile(run, backend="aot_eager"), torch.randn(2, 4), level="L0")
    order = ["parameters_grad" in name for name in compiled.data]
    assert order == sorted(order)


def test_the_first_compilation_of_a_process_inside_a_step_is_told(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"dump_path": str(tmp_path / "dump"), "level": "L1"}))
    script = textwrap.dedent("""
        import torch
        from msprobe.pytorch import PrecisionDebugger
        tool = PrecisionDebugger(config_path="config.json")
        model = torch.nn.Linear(2, 2)
        run = None
        for _ in range(2):
            with tool.capture():
                run = torch.compile(model, backend="aot_eager") if run is None else run
                run(torch.ones(1, 2)).exp()
    """)
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], cwd=tmp_path, check=True)
    notes, names = [], []
    for step in ("step0", "step1"):
        folder = next((tmp_path / "dump" / step).iterdir())
        notes.append(json.loads((folder / "coverage.json").read_text())["notes"])
        names.append(list(json.loads((folder / "dump.json").read_text())["data"]))
    assert "loaded inside this step" in notes[0]["torch.compile"]
    assert "Functional.linear.0.forward" not in names[0]
    assert "Functional.linear.0.forward" in names[1]
    assert "torch.compile" not in notes[1]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_what_runs_eagerly_inside_a_compiled_module_is_recorded(debugger, backend):
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU())

    def run(x):
        h = model(x)
        torch._dynamo.graph_break()
        return torch.compiler.disable(torch.special.expm1)(h).sum()

    found = recorded(debugger, model, torch.compile(run, backend=backend), torch.randn(2, 4), level="L1").data
    assert "fx" in found["Functional.gelu.0.forward"]
    assert "fx" not in found["Torch.special.expm1.0.forward"]
