"""bfloat16: the program computes the bits that it has without probes; with `exact` the graph with probes does, too."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from compiled_models import train_step
from model_table import one_layer
from torch import nn


class Gated(nn.Module):
    """Chains of pointwise operators, which Inductor fuses and keeps in float32."""

    def __init__(self):
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(32, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, x):
        h = self.norm(x * 1.1 + 0.3)
        h = self.down((nn.functional.silu(self.gate(h)) * self.up(h) + 0.7).tanh())
        return ((h * h + x * 0.37).exp() * 0.1).float().mean()


def coverage_of(tool, step: int = 0) -> dict:
    folder = next((Path(tool._session.config.dump_path) / f"step{step}").iterdir())
    return json.loads((folder / "coverage.json").read_text())


def half_model():
    return Gated().to(torch.bfloat16), torch.randn(8, 16).to(torch.bfloat16)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_inductor")
@pytest.mark.parametrize("exact", [True, False])
def test_bfloat16_results_are_bitwise_those_of_the_unprobed_run(debugger, exact):
    model, x = half_model()
    twin = copy.deepcopy(model)
    tool = debugger(level="mix", risk_level="ALL", exact=exact, self_check=True)
    expected = train_step(model, torch.compile(model), x)
    run = torch.compile(twin)
    with tool.capture(twin):
        found = train_step(twin, run, x)
    assert all(torch.equal(*pair) for pair in zip(expected, found, strict=True))
    again = train_step(twin, run, x)
    assert all(torch.equal(*pair) for pair in zip(expected, again, strict=True))
    notes = coverage_of(tool)["notes"]
    assert "perturbed" not in notes["compiled"]
    (graph,) = notes["compiled"]["graphs"]
    if exact:
        assert notes["exact"].startswith("Inductor computes the same bits")
        assert graph["self_check"] == "bitwise equal: results of 1 runs, gradients of 1 runs"
    else:
        assert "differ" in graph["self_check"]


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_bfloat16_models_compute_the_same_bits_with_probes_operator_by_operator(debugger, name):
    model, x = one_layer(name)
    model = model.to(torch.bfloat16)
    twin = copy.deepcopy(model)
    expected = train_step(model, torch.compile(model, backend="aot_eager"), x)
    run = torch.compile(twin, backend="aot_eager")
    with debugger(level="mix", exact=True).capture(twin):
        found = train_step(twin, run, x)
    assert all(torch.equal(*pair) for pair in zip(expected, found, strict=True))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "aot_eager_decomp_partition"])
def test_backends_that_round_at_each_operator_are_not_blamed(debugger, backend):
    model, x = half_model()
    tool = debugger(level="L1")
    with tool.capture():
        torch.compile(model, backend=backend)(x)
    assert "perturbed" not in coverage_of(tool)["notes"]["compiled"]


def test_the_setting_lasts_as_long_as_the_debugger(debugger):
    import torch._inductor.config as settings

    assert settings.emulate_precision_casts is False
    tool = debugger(level="L1", exact=True)
    assert settings.emulate_precision_casts is True
    tool._session.close()
    assert settings.emulate_precision_casts is False
    debugger(level="L1")
    assert settings.emulate_precision_casts is False


def test_functions_that_were_compiled_before_are_told(debugger):
    model, x = half_model()
    run = torch.compile(model, backend="aot_eager")
    run(x)
    tool = debugger(level="L1", exact=True)
    with tool.capture():
        run(x)
    assert "1 functions had been compiled before" in coverage_of(tool)["notes"]["exact"]
