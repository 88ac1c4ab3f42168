"""Recording a compiled program changes neither its results, nor its graphs, nor what it compiles."""

from __future__ import annotations

import copy
import json
import threading
from pathlib import Path

import pytest
import torch
from compiled_models import MODELS, Operators, Selecting, names, recorded, train_step
from debugger_traces import dump_of
from torch import nn
from torch._dynamo.symbolic_convert import InliningInstructionTranslator


class Counting:
    """A backend that counts the graphs it is given, with probes and without."""

    def __init__(self, backend="aot_eager"):
        self.graphs = []
        self.probed = 0
        self._compile = torch._dynamo.lookup_backend(backend)

    def __call__(self, graph, inputs):
        self.graphs.append(graph)
        self.probed += any("msprobe" in node.name for node in graph.graph.nodes)
        return self._compile(graph, inputs)


def captured_step(tool, model, run, x):
    with tool.capture(model):
        return train_step(model, run, x)


@pytest.mark.parametrize("name", ["operators", "in-place", "convolutions", "graph breaks", "gpt2"])
def test_loss_and_gradients_are_bitwise_those_of_the_unprobed_compiled_run(debugger, name):
    model, x = MODELS[name]()
    twin = copy.deepcopy(model)
    expected = train_step(model, torch.compile(model, backend="aot_eager"), x)
    found = captured_step(debugger(level="mix"), twin, torch.compile(twin, backend="aot_eager"), x)
    assert all(torch.equal(*pair) for pair in zip(expected, found, strict=True))


@pytest.mark.slow
@pytest.mark.usefixtures("quick_inductor")
def test_inductor_results_are_bitwise_those_without_probes(debugger):
    model, x = MODELS["operators"]()
    run = torch.compile(model, backend="inductor")
    expected = train_step(model, run, x)
    found = captured_step(debugger(level="L1"), model, run, x)
    assert all(torch.equal(*pair) for pair in zip(expected, found, strict=True))


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("name", ["operators", "graph breaks"])
def test_one_more_graph_per_graph_and_none_when_started_again_or_stopped(debugger, level, name):
    model, x = MODELS[name]()
    backend = Counting()
    run = torch.compile(model, backend=backend)
    train_step(model, run, x)
    clean = len(backend.graphs)
    tool = debugger(level=level)
    for _ in range(4):
        captured_step(tool, model, run, x)
        assert backend.probed <= clean
        assert len(backend.graphs) <= 3 * clean  # the form that runs beside the one with probes is compiled anew
    compiled = len(backend.graphs)
    train_step(model, run, x)
    captured_step(tool, model, run, x)
    assert len(backend.graphs) == compiled
    assert names(dump_of(tool, 0).data) == names(dump_of(tool, 4).data)


def test_no_graph_break_is_added(debugger):
    model, x = MODELS["operators"]()
    backend = Counting()
    recorded(debugger, model, torch.compile(model, backend=backend, fullgraph=True), x, level="mix")
    assert backend.probed == 1
    assert len(backend.graphs) == 2


def test_repeated_blocks_share_one_graph_and_have_their_own_names(debugger):
    model = Operators()
    twin = copy.deepcopy(model)
    backend = Counting()
    for block in twin.blocks:
        block.compile(backend=backend)
    x = torch.randn(2, 3, 4, requires_grad=True)  # as what the first block gives to the second
    eager = recorded(debugger, model, model, x, level="mix")
    compiled = recorded(debugger, twin, twin, x, level="mix")
    assert backend.probed == 1
    assert names(compiled.data) == names(eager.data)


def test_list_and_scope_select_at_run_time(debugger):
    model, x = MODELS["operators"]()
    for config in (
        {"level": "mix", "list": ["blocks.1"]},
        {"level": "L1", "list": ["linear"]},
        {"level": "L1", "scope": ["Functional.gelu.0.forward", "Functional.softmax.0.forward"]},
        {"level": "L1", "scope": ["Functional.gelu.0.forward", "Functional.gelu.1.forward"]},
        {"level": "L1", "data_mode": ["backward"]},
        {"level": "L1", "data_mode": ["forward", "input"]},
    ):
        torch._dynamo.reset()
        eager = recorded(debugger, model, model, x, **config)
        compiled = recorded(debugger, model, torch.compile(model, backend="aot_eager"), x, **config)
        assert names(compiled.data) == names(eager.data), config


@pytest.mark.parametrize("mode", ["md5", "xor", "hash"])
def test_checksums_are_those_of_the_eager_run(debugger, mode):
    model, x = MODELS["operators"]()
    eager = recorded(debugger, model, model, x, level="L1", summary_mode=mode)
    compiled = recorded(debugger, model, torch.compile(model, backend="aot_eager"), x, level="L1", summary_mode=mode)
    first = "Functional.linear.0.forward"
    assert compiled.data[first]["output"] == eager.data[first]["output"]


def test_task_tensor_saves_what_passes_in_the_compiled_program(debugger):
    model, x = MODELS["in-place"]()
    eager = recorded(debugger, model, model, x, level="L1", task="tensor")
    compiled = recorded(debugger, model, torch.compile(model, backend="aot_eager"), x, level="L1", task="tensor")
    files = sorted(file.name for file in Path(eager.tensor_folder).iterdir())
    assert sorted(file.name for file in Path(compiled.tensor_folder).iterdir()) == files
    for name in files:
        pair = [torch.load(Path(dump.tensor_folder) / name) for dump in (eager, compiled)]
        torch.testing.assert_close(*pair)


def test_hierarchy_and_stacks_name_the_users_code(debugger):
    model, x = MODELS["operators"]()
    eager = recorded(debugger, model, model, x, level="mix")
    compiled = recorded(debugger, model, torch.compile(model, backend="aot_eager"), x, level="mix")
    assert compiled.parents == eager.parents
    (name,) = (name for name in compiled.data if name.endswith("einsum.0.forward"))
    frames = compiled.stacks[name]
    assert "einsum" in frames[0]
    assert not any("_dynamo" in frame or "msprobe/msprobe" in frame for frame in frames)


def test_each_compiled_record_names_its_graph_and_node(debugger):
    model, x = MODELS["operators"]()
    compiled = recorded(debugger, model, torch.compile(model, backend="aot_eager"), x, level="L1")
    assert all(set(record["fx"]) == {"graph", "node"} for record in compiled.data.values())
    assert compiled.data["Functional.linear.0.forward"]["fx"]["node"] == "linear"


def test_without_gradients_there_are_forward_records_only(debugger):
    model, x = MODELS["operators"]()
    run = torch.compile(model, backend="aot_eager")
    tool = debugger(level="L1")
    with tool.capture(model), torch.no_grad():
        run(x)
    found = dump_of(tool).data
    assert found
    assert all(name.endswith("forward") for name in found)


def test_dynamic_shapes_are_one_graph(debugger):
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    backend = Counting()
    run = torch.compile(model, backend=backend, dynamic=True)
    tool = debugger(level="L1")
    for size in (3, 5, 7):
        with tool.capture(model):
            run(torch.randn(size, 4)).view(-1).sum().backward()
    assert backend.probed == 1
    assert dump_of(tool, 2).data["Functional.linear.0.forward"]["input_args"][0]["shape"] == [7, 4]


def test_a_second_backward_pass_has_its_own_records(debugger):
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    tool = debugger(level="L1")
    with tool.capture(model):
        loss = torch.compile(model, backend="aot_eager")(torch.randn(2, 4)).sum()
        loss.backward(retain_graph=True)
        loss.backward()
    assert {"Functional.gelu.0.backward", "Functional.gelu.0.backward#2"} <= set(dump_of(tool).data)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "aot_eager_decomp_partition"])
def test_an_error_of_the_user_surfaces_unchanged_and_recording_goes_on(debugger, backend):
    model = Selecting()
    run = torch.compile(model, backend=backend)
    x, wrong, right = torch.randn(2, 4), torch.tensor([9]), torch.tensor([1])
    with pytest.raises(IndexError) as plain:
        run(x, wrong)
    tool = debugger(level="mix")
    tool.start(model)
    with pytest.raises(IndexError) as probed:
        run(x, wrong)
    run(x, right).sum().backward()
    tool.stop()
    tool.step()
    assert str(probed.value) == str(plain.value)
    assert "Module.block.Residual.forward.1" in dump_of(tool).data


def test_a_backend_that_cannot_compile_probes_gets_the_users_graph(debugger):
    def picky(graph, inputs):
        if any("msprobe" in str(node.name) for node in graph.graph.nodes):
            raise NotImplementedError("only plain graphs")
        return graph.forward

    model, x = MODELS["operators"]()
    expected = model(x)
    tool = debugger(level="L1")
    with tool.capture(model):
        result = torch.compile(model, backend=picky)(x)
    torch.testing.assert_close(result, expected)
    folder = next((Path(tool._session.config.dump_path) / "step0").iterdir())
    coverage = json.loads((folder / "coverage.json").read_text())
    assert any("runs without probes" in reason for reason in coverage["not_recorded"])
    assert "only plain graphs" in (folder / "dump_error_info.log").read_text()


def test_a_backend_that_fails_inside_vmap_leaves_no_trace_of_it(debugger):
    entered = torch._C._functorch._vmap_increment_nesting

    def picky(graph, inputs):
        if any("msprobe" in str(node.name) for node in graph.graph.nodes):
            entered(3, "error")
            raise NotImplementedError("only plain graphs")
        return graph.forward

    def run(x):
        return torch.vmap(lambda row: (row * row).sum())(x).exp()

    x = torch.randn(3, 4)
    expected = run(x)
    with debugger(level="L1").capture():
        result = torch.compile(run, backend=picky)(x)
    torch.testing.assert_close(result, expected)
    assert torch._C._functorch.get_dynamic_layer_stack_depth() == 0


def test_threads_that_compile_at_once_leave_the_compiler_as_it_was(debugger):
    before = InliningInstructionTranslator.__dict__["inline_call"]
    x = torch.randn(3, 4)
    models = [nn.Sequential(nn.Linear(4, 4), nn.GELU()) for _ in range(4)]
    expected = [model(x) for model in models]
    results = {}

    def run(number):
        results[number] = torch.compile(models[number], backend="aot_eager")(x)

    tool = debugger(level="mix")
    with tool.capture(models):
        threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        exported = torch.export.export(models[0], (x,), strict=True)
    assert InliningInstructionTranslator.__dict__["inline_call"] is before
    assert all(torch.equal(results[number], expected[number]) for number in range(4))
    assert torch.equal(exported.module()(x), expected[0])
    assert "fx" in dump_of(tool).data["Functional.gelu.3.forward"]


@pytest.mark.parametrize("stance", ["fail_on_recompile", "eager_on_recompile", "force_eager"])
def test_a_stance_that_forbids_compiling_raises_nothing(debugger, stance):
    model, x = MODELS["operators"]()
    run = torch.compile(model, backend="aot_eager")
    expected = run(x)
    tool = debugger(level="L1")
    with tool.capture(model), torch.compiler.set_stance(stance):
        result = run(x)
    torch.testing.assert_close(result, expected)
    assert "Functional.gelu.1.forward" in dump_of(tool).data


def test_a_backend_that_a_stance_forces_is_used_with_probes(debugger):
    model, x = MODELS["operators"]()
    backend = Counting()
    run = torch.compile(model, backend="eager")
    tool = debugger(level="L1")
    for _ in range(3):
        with tool.capture(model), torch.compiler.set_stance("default", force_backend=backend):
            run(x)
    assert backend.probed == 1
    assert "fx" in dump_of(tool, 2).data["Functional.gelu.1.forward"]
