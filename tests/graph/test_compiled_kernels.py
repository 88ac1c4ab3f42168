"""Level L2 of compiled code: each operator that AOTAutograd leaves is a record, under the call it comes from."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from compiled_models import Broken, Convolutions, InPlace, assert_same, recorded, train_step
from debugger_traces import dump_of
from torch import nn
from torch._dynamo.backends.common import aot_autograd


def make_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 1))


def compiled_step(model: nn.Module, backend: Any) -> Any:
    run = torch.compile(model, backend=backend)
    return lambda x: run(x).sum()


def kernels(debugger: Any, model: nn.Module, run: Any, x: torch.Tensor, **config: Any) -> Any:
    task = config.pop("task", "statistics")
    section = {"list": config.pop("list", ["Aten."]), **config.pop("section", {})}
    return recorded(debugger, model, run, x, level="L2", task=task, **config, **{task: section})


def compiled_records(dump: Any) -> dict[str, Any]:
    return {name: record for name, record in dump.data.items() if "fx" in record}


def test_a_kernel_has_its_node_the_api_call_and_the_module_it_comes_from(debugger):
    model, x = make_model(), torch.randn(2, 4)
    twin = copy.deepcopy(model)
    eager = kernels(debugger, model, lambda x: model(x).sum(), x)
    compiled = kernels(debugger, twin, compiled_step(twin, "aot_eager"), x)
    first, second = compiled.data["Aten.addmm.default.0.forward"], compiled.data["Aten.addmm.default.1.forward"]
    place = {"node": "addmm", "api": "Functional.linear.0.forward", "module": "0"}
    assert first["fx"] == {"graph": second["fx"]["graph"], **place}
    assert (second["fx"]["node"], second["fx"]["module"]) == ("addmm_1", "2")
    for name in ("Aten.addmm.default.0.forward", "Aten.gelu.default.0.forward", "Aten.addmm.default.1.forward"):
        assert_same(eager.data[name]["output"], compiled.data[name]["output"], name)
        chain = [name]
        while chain[-1] is not None:
            assert compiled.parents[chain[-1]] == eager.parents[chain[-1]]
            chain.append(eager.parents[chain[-1]])
    name = "Aten.gelu_backward.default.0.backward"
    assert compiled.data[name]["fx"]["api"] == compiled.parents[name] == "Functional.gelu.0.backward"
    assert compiled.parents["Functional.gelu.0.backward"] == "Module.1.GELU.backward.0"
    assert_same(eager.data[name]["output"], compiled.data[name]["output"], name)


@pytest.mark.parametrize("make", [Convolutions, InPlace, Broken])
def test_results_are_bitwise_those_of_the_unprobed_compiled_run(debugger, make):
    model = make()
    x = {Convolutions: torch.randn(2, 3, 14, 14), InPlace: torch.randn(2, 6), Broken: torch.randn(2, 4)}[make]
    twin = copy.deepcopy(model)
    expected = train_step(model, torch.compile(model, backend="aot_eager"), x)
    tool = debugger(level="L2", statistics={"list": ["Aten."]})
    run = torch.compile(twin, backend="aot_eager")
    with tool.capture(twin):
        found = train_step(twin, run, x)
    assert all(torch.equal(*pair) for pair in zip(expected, found, strict=True))
    dump = dump_of(tool)
    assert dump.coverage["failures"] == []
    assert "ran_without_probes" not in dump.coverage["notes"]["compiled"]
    both = {name.rpartition(".")[2] for name in compiled_records(dump)}
    assert both == {"forward", "backward"}


@pytest.mark.slow
@pytest.mark.usefixtures("quick_inductor")
def test_inductor_code_is_probed_after_its_own_passes(debugger):
    model, x = nn.Sequential(nn.Linear(4, 4), nn.GELU()), torch.randn(2, 4)
    twin = copy.deepcopy(model)
    eager = kernels(debugger, model, lambda x: model(x).sum(), x)
    run = torch.compile(twin)
    expected = train_step(twin, lambda x: run(x).sum(), x)
    tool = debugger(level="L2", statistics={"list": ["Aten."]})
    with tool.capture(twin):
        found = train_step(twin, lambda x: run(x).sum(), x)
    assert all(torch.equal(*pair) for pair in zip(expected, found, strict=True))
    compiled = dump_of(tool)
    assert compiled.coverage["failures"] == []
    linear, erf = compiled.data["Aten.addmm.default.0.forward"], compiled.data["Aten.erf.default.0.forward"]
    assert linear["fx"]["node"] == "addmm"
    assert (erf["fx"]["api"], erf["fx"]["module"]) == ("Functional.gelu.0.forward", "1")  # taken apart by Inductor
    assert_same(eager.data["Aten.addmm.default.0.forward"]["output"], linear["output"], "addmm")
    assert any("backward" in record["fx"]["api"] for name, record in compiled.data.items() if name.endswith("backward"))


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (["Functional.gelu.0.forward"], {"Aten.gelu.default.0.forward"}),
        (["Aten.addmm.default.1.forward"], {"Aten.addmm.default.1.forward"}),
        (["Module.1.GELU.backward.0"], {"Aten.gelu_backward.default.0.backward"}),
    ],
)
def test_list_means_the_same_as_in_an_eager_run(debugger, wanted, found):
    model, x = make_model(), torch.randn(2, 4)
    compiled = kernels(debugger, model, compiled_step(model, "aot_eager"), x, list=wanted)
    assert set(compiled.data) == found
    assert compiled.coverage["not_recorded"]["filtered by scope or list"] > 0


def test_tensors_of_compiled_kernels_are_saved(debugger):
    model, x = make_model(), torch.randn(2, 4)
    twin = copy.deepcopy(model)
    eager = kernels(debugger, model, lambda x: model(x).sum(), x, task="tensor")
    compiled = kernels(debugger, twin, compiled_step(twin, "aot_eager"), x, task="tensor")
    entries = [dump.data["Aten.addmm.default.1.forward"]["output"][0] for dump in (eager, compiled)]
    files = [dump.tensor_folder / entry["data_name"] for dump, entry in zip((eager, compiled), entries, strict=True)]
    assert torch.equal(*map(torch.load, files))


def test_a_later_step_compiles_nothing_and_outside_steps_the_clean_code_runs(debugger):
    model, x = make_model(), torch.randn(2, 4)
    graphs = []

    def compiler(module, _inputs):
        graphs.append(any("msprobe" in str(node.target) for node in module.graph.nodes))
        return module.forward

    step = compiled_step(model, aot_autograd(fw_compiler=compiler))
    tool = debugger(level="L2", statistics={"list": ["Aten."]})
    for _ in range(2):
        train_step(model, step, x)
        with tool.capture(model):
            train_step(model, step, x)
    assert graphs == [False, False, True, True]
    assert compiled_records(dump_of(tool, 0)).keys() == compiled_records(dump_of(tool, 1)).keys()


def test_repeated_blocks_share_a_graph_and_have_their_own_parents(debugger):
    model, x = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3))), torch.randn(2, 4)
    x.requires_grad_()  # else the first block has a graph of its own
    for block in model:
        block.compile(backend="aot_eager")
    compiled = kernels(debugger, model, lambda x: model(x).sum(), x)
    records = [compiled.data[f"Aten.addmm.default.{index}.forward"] for index in range(3)]
    assert len({record["fx"]["graph"] for record in records}) == 1
    for index in range(3):
        assert compiled.parents[f"Functional.linear.{index}.forward"] == f"Module.{index}.0.Linear.forward.0"


def test_a_backend_that_cannot_compile_the_probes_gets_the_graph_without_them(debugger):
    model, x = make_model(), torch.randn(2, 4)

    def compiler(module, _inputs):
        if any("msprobe" in str(node.target) for node in module.graph.nodes):
            raise RuntimeError("unknown operator")
        return module.forward

    compiled = kernels(debugger, model, compiled_step(model, aot_autograd(fw_compiler=compiler)), x)
    (reason,) = {entry["reason"] for entry in compiled.coverage["notes"]["compiled"]["ran_without_probes"]}
    assert reason == "RuntimeError: unknown operator"
    assert "Aten.addmm.default.0.forward" in compiled.data  # such a backend calls the operators themselves


def test_a_backward_pass_under_compiled_autograd_is_told(debugger):
    model, x = make_model(), torch.randn(2, 4)
    twin = copy.deepcopy(model)

    def under_compiled_autograd(one):
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
            return train_step(one, compiled_step(one, "aot_eager"), x)

    expected = under_compiled_autograd(model)
    tool = debugger(level="L2", statistics={"list": ["Aten."]})
    with tool.capture(twin):
        found = under_compiled_autograd(twin)
    assert all(torch.equal(*pair) for pair in zip(expected, found, strict=True))
    dump = dump_of(tool)
    assert dump.coverage["failures"] == []
    assert "fx" in dump.data["Aten.addmm.default.0.forward"]
    assert dump.coverage["not_recorded"]["kernels fused inside a compiled function (torch.compile)"] > 0
