"""Real runs under torch.compile against eager ones: equal models are equal, and bugs of a compiler are named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from planted_model import Fault, Model, record, remembered
from torch import nn
from torch._dynamo.backends.common import aot_autograd

from msprobe.compare.comparison import Request, compare_dumps
from msprobe.compare.rows import Summary

TASKS = {
    "statistics": {"task": "statistics"},
    "tensor": {"task": "tensor"},
    "md5": {"task": "statistics", "statistics": {"summary_mode": "md5"}},
}
ATEN = torch.ops.aten


@pytest.fixture(autouse=True)
def fresh_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No compiled code of an earlier test."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Eager runs, one for each configuration."""
    return remembered(tmp_path_factory.mktemp("golden"), change=steady)


def steady(model: Model, dtype: torch.dtype = torch.float32) -> None:
    """Without random numbers: Inductor draws others than eager kernels."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    model.to(dtype)


def compiled(backend: Any, dtype: torch.dtype = torch.float32) -> Callable[[Model], None]:
    """Compile the model in place."""

    def change(model: Model) -> None:
        steady(model, dtype)
        model.compile(backend=backend)

    return change


class FaultyCompiler:
    """A backend with a bug: in forward or backward code it takes a wrong operator for the second call of a right one.

    ``nodes`` are the calls of gelu in the graph that Dynamo has given it.
    """

    def __init__(self, right: Any, wrong: Any, *, backward: bool = False) -> None:
        self.right, self.wrong = right, wrong
        self.nodes: list[str] = []
        compilers = (self.keep, self.rewrite) if backward else (self.rewrite, self.keep)
        self.compile = aot_autograd(fw_compiler=compilers[0], bw_compiler=compilers[1])

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any) -> Any:
        self.nodes = [node.name for node in graph.graph.nodes if node.target is F.gelu]
        return self.compile(graph, inputs)

    def keep(self, graph: torch.fx.GraphModule, _: Any) -> Any:
        return make_boxed_func(graph.forward)

    def rewrite(self, graph: torch.fx.GraphModule, _: Any) -> Any:
        calls = [node for node in graph.graph.nodes if node.target is self.right]
        calls[1 if self.right is ATEN.gelu.default else 0].target = self.wrong  # backward code begins with the last
        graph.recompile()
        return make_boxed_func(graph.forward)


def wrong_gelu(x: torch.Tensor, **_: Any) -> torch.Tensor:
    return ATEN.relu.default(x)


def wrong_gelu_backward(gradient: torch.Tensor, x: torch.Tensor, **_: Any) -> torch.Tensor:
    return ATEN.threshold_backward.default(gradient, x, 0)


def compare(target: Path, golden: Path, out: Path, **options: Any) -> Summary:
    return compare_dumps(Request(target, golden, out, **options)).summary


def assert_equal(summary: Summary) -> None:
    assert summary.first_divergence is None, summary.first_divergence
    assert (summary.exit_code, summary.only_target, summary.only_golden) == (0, 0, 0)
    assert summary.records["pass"] > 50


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_compiled_run_equals_the_eager_one(
    debugger: Callable[..., Any], tmp_path: Path, task: str, dtype: torch.dtype
) -> None:
    golden = record(debugger, tmp_path / "g", change=lambda model: steady(model, dtype), **TASKS[task])
    target = record(debugger, tmp_path / "t", change=compiled("aot_eager", dtype), **TASKS[task])
    assert_equal(compare(target, golden, tmp_path / "out"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_code_of_inductor_equals_the_eager_run(
    debugger: Callable[..., Any], tmp_path: Path, dtype: torch.dtype
) -> None:
    def run(name: str, *, compiling: bool) -> Path:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).to(dtype)
        if compiling:
            model.compile(backend="inductor")
        tool = debugger(dump_path=str(tmp_path / name), task="tensor", level="mix")
        tool.start(model)
        model(torch.randn(4, 8, dtype=dtype)).sum().backward()
        tool.stop()
        tool.step()
        return tmp_path / name

    summary = compare(run("t", compiling=True), run("g", compiling=False), tmp_path / "out")
    assert summary.first_divergence is None
    assert (summary.exit_code, summary.pairs[0].mode) == (0, "tensor")
    assert summary.records["pass"] > 15


def test_limits_measured_from_a_float64_run_let_compiled_code_pass(
    debugger: Callable[..., Any], golden: Callable[..., Path], tmp_path: Path
) -> None:
    double = record(debugger, tmp_path / "d", change=lambda model: steady(model, torch.float64))
    target = record(debugger, tmp_path / "t", change=compiled("aot_eager"))
    assert_equal(compare(target, golden(debugger), tmp_path / "out", reference=double))


@pytest.mark.parametrize(("task", "level"), [("statistics", "L1"), ("tensor", "mix"), ("md5", "mix")])
def test_bug_of_a_compiler_is_named_with_its_node(
    debugger: Callable[..., Any], golden: Callable[..., Path], tmp_path: Path, task: str, level: str
) -> None:
    backend = FaultyCompiler(ATEN.gelu.default, wrong_gelu)
    target = record(debugger, tmp_path / "t", change=compiled(backend), level=level, **TASKS[task])
    out = tmp_path / "out"
    first = compare(target, golden(debugger, level=level, **TASKS[task]), out).first_divergence
    assert first is not None
    assert (first.record, first.cause) == ("Functional.gelu.1.forward", "outputs differ from equal inputs")
    assert first.fx is not None
    assert first.fx.node == backend.nodes[1]
    assert "F.gelu(hidden)" in first.stack[0]
    assert first.module == ("blocks.1" if level == "mix" else "")
    written = json.loads((out / "summary.json").read_text())["first_divergence"]
    assert written["fx"] == {"graph": first.fx.graph, "node": backend.nodes[1]}
    assert "planted_model.py, line" in written["call_site"]


def test_bug_in_compiled_backward_code_is_named(
    debugger: Callable[..., Any], golden: Callable[..., Path], tmp_path: Path
) -> None:
    backend = FaultyCompiler(ATEN.gelu_backward.default, wrong_gelu_backward, backward=True)
    target = record(debugger, tmp_path / "t", change=compiled(backend))
    first = compare(target, golden(debugger), tmp_path / "out").first_divergence
    assert first is not None
    assert (first.record, first.cause) == ("Functional.gelu.1.backward", "outputs differ from equal inputs")
    assert first.fx is not None
    assert first.fx.node == backend.nodes[1]
    assert first.module == "blocks.1"


def test_changed_weight_of_a_compiled_model_is_named(
    debugger: Callable[..., Any], golden: Callable[..., Path], tmp_path: Path
) -> None:
    target = record(debugger, tmp_path / "t", Fault("weight"), change=compiled("aot_eager"))
    first = compare(target, golden(debugger), tmp_path / "out").first_divergence
    assert first is not None
    assert (first.record, first.cause) == ("Functional.linear.7.forward", "a parameter differs")
    assert "The parameter blocks.1.down.weight differs" in first.explanation
    assert first.module == "blocks.1.down"
    assert first.fx is not None
