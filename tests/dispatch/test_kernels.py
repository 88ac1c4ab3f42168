"""Level L2 on CPU and GPU: every kernel is a record under the API call that runs it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from debugger_traces import assert_nothing_left, dump_of
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint

from msprobe.store import Dump

Debugger = Callable[..., Any]


def recorded(debugger: Debugger, run: Callable[[], object], *names: str, model: Any = None, **config: Any) -> Dump:
    """Dump of one step of ``run`` at level L2; ``names`` are the config's ``list``."""
    task = config.pop("task", "statistics")
    section = {"list": list(names) or ["Aten."], **config.pop("section", {})}
    tool = debugger(level="L2", task=task, **config, **{task: section})
    with tool.capture(model):
        run()
    dump = dump_of(tool)
    assert dump.coverage is not None
    assert dump.coverage["failures"] == []
    return dump


def multiply() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    F.linear(x.exp(), torch.ones(4, 3, requires_grad=True)).sum().backward()


def test_kernels_of_both_passes_stand_under_their_api_and_module(debugger: Debugger) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    dump = recorded(debugger, lambda: model(torch.ones(2, 3)).sum().backward(), model=model)
    assert dump.parents == {
        "Aten.addmm.default.0.forward": "Functional.linear.0.forward",
        "Functional.linear.0.forward": "Module.0.Linear.forward.0",
        "Module.0.Linear.forward.0": None,
        "Aten.relu.default.0.forward": "Functional.relu.0.forward",
        "Functional.relu.0.forward": "Module.1.ReLU.forward.0",
        "Module.1.ReLU.forward.0": None,
        "Aten.sum.default.0.forward": "Tensor.sum.0.forward",
        "Tensor.sum.0.forward": None,
        "Aten.threshold_backward.default.0.backward": "Functional.relu.0.backward",
        "Functional.relu.0.backward": "Module.1.ReLU.backward.0",
        "Module.1.ReLU.backward.0": None,
        "Aten.mm.default.0.backward": "Functional.linear.0.backward",
        "Functional.linear.0.backward": "Module.0.Linear.backward.0",
        "Module.0.Linear.backward.0": None,
        "Aten.sum.dim_IntList.0.backward": "Functional.linear.0.backward",
    }
    assert set(dump.data) == {name for name in dump.parents if name.startswith("Aten.")}


def test_a_record_holds_arguments_and_results_like_any_other(debugger: Debugger) -> None:
    dump = recorded(debugger, multiply)
    forward = dump.data["Aten.exp.default.0.forward"]
    assert forward["input_args"][0]["Max"] == 1.0
    assert forward["input_kwargs"] == {}
    assert forward["output"][0]["Max"] == pytest.approx(2.7182817)
    backward = dump.data["Aten.mm.default.1.backward"]
    assert [entry["shape"] for entry in backward["input"]] == [[4, 2], [2, 3]]
    assert [entry["shape"] for entry in backward["output"]] == [[4, 3]]
    assert dump.stacks["Aten.exp.default.0.forward"][0].startswith(f"File {__file__}")


def test_an_argument_that_is_written_to_is_measured_before(debugger: Debugger) -> None:
    def run() -> None:
        torch.ones(2).add_(10)
        torch.add(torch.ones(2), 1, out=torch.full((2,), 7.0))
        torch._foreach_mul_([torch.ones(2), torch.full((2,), 2.0)], 5.0)

    data = recorded(debugger, run).data
    in_place, out = data["Aten.add_.Tensor.0.forward"], data["Aten.add.out.0.forward"]
    assert (in_place["input_args"][0]["Max"], in_place["output"][0]["Max"]) == (1.0, 11.0)
    assert (out["input_kwargs"]["out"]["Max"], out["output"][0]["Max"]) == (7.0, 2.0)
    several = data["Aten._foreach_mul_.Scalar.0.forward"]
    assert [entry["Max"] for entry in several["input_args"][0]] == [1.0, 2.0]
    assert [entry["Max"] for entry in several["output"][0]] == [5.0, 10.0]


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (["Functional.linear.0.forward"], ["Aten.mm.default.0.forward"]),
        (["Functional.linear.0.backward"], ["Aten.mm.default.1.backward", "Aten.mm.default.2.backward"]),
        (["exp"], ["Aten.exp.default.0.forward", "Aten.mul.Tensor.0.backward"]),
        (["Aten.mm.default.1.backward"], ["Aten.mm.default.1.backward"]),
        (["Aten.t.default.0.forward"], ["Aten.t.default.0.forward"]),
    ],
)
def test_list_takes_kernels_by_name_or_by_the_api_that_runs_them(
    debugger: Debugger, names: list[str], wanted: list[str]
) -> None:
    dump = recorded(debugger, multiply, *names)
    assert list(dump.data) == wanted
    assert dump.coverage is not None
    assert dump.coverage["not_recorded"]["filtered by scope or list"] > 0


def test_list_takes_all_kernels_inside_a_module(debugger: Debugger) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    run = lambda: model(torch.ones(2, 3)).sum().backward()  # noqa: E731
    dump = recorded(debugger, run, "Module.0.Linear.forward.0", "Module.1.ReLU.backward.0", model=model)
    assert list(dump.data) == ["Aten.addmm.default.0.forward", "Aten.threshold_backward.default.0.backward"]


@pytest.mark.parametrize(
    ("risk_level", "seen", "unseen"),
    [
        ("ALL", "Aten.t.default.0.forward", ""),
        ("FOCUS", "Aten.exp.default.0.forward", "Aten.t.default.0.forward"),
        ("CORE", "Aten.mm.default.0.forward", "Aten.exp.default.0.forward"),
    ],
)
def test_risk_level_leaves_views_or_all_but_the_core_out(
    debugger: Debugger, risk_level: str, seen: str, unseen: str
) -> None:
    dump = recorded(debugger, multiply, risk_level=risk_level)
    assert seen in dump.data
    assert unseen not in dump.data
    assert dump.coverage is not None
    assert bool(unseen) == ("LOW risk API (see risk_level)" in dump.coverage["not_recorded"])


@pytest.mark.parametrize(
    ("mode", "keys"),
    [
        (["forward"], {("input_args", "input_kwargs", "output")}),
        (["backward"], {("input", "output")}),
        (["input"], {("input_args", "input_kwargs"), ("input",)}),
        (["output"], {("output",)}),
    ],
)
def test_data_mode_chooses_passes_and_sides(debugger: Debugger, mode: list[str], keys: set[tuple[str, ...]]) -> None:
    dump = recorded(debugger, multiply, section={"data_mode": mode})
    assert {tuple(record) for record in dump.data.values()} == keys


@pytest.mark.parametrize(("mode", "length"), [("md5", 8), ("xor", 18), ("hash", 18)])
def test_checksums_stand_in_kernel_records(debugger: Debugger, mode: str, length: int) -> None:
    dump = recorded(debugger, multiply, section={"summary_mode": mode})
    assert len(dump.data["Aten.exp.default.0.forward"]["output"][0]["md5"]) == length


def test_task_tensor_stores_what_each_kernel_read_and_wrote(debugger: Debugger) -> None:
    dump = recorded(debugger, lambda: torch.ones(3).add_(1), task="tensor")
    record = dump.data["Aten.add_.Tensor.0.forward"]
    before, after = record["input_args"][0]["data_name"], record["output"][0]["data_name"]
    assert (before, after) == ("Aten.add_.Tensor.0.forward.input.0.pt", "Aten.add_.Tensor.0.forward.output.0.pt")
    assert dump.tensor_folder is not None
    stored = [torch.load(dump.tensor_folder / name, weights_only=True).tolist() for name in (before, after)]
    assert stored == [[1.0] * 3, [2.0] * 3]


def test_recomputed_kernels_repeat_the_names_of_the_first_run(debugger: Debugger) -> None:
    def run() -> None:
        x = torch.ones(2, requires_grad=True)
        checkpoint(lambda t: t.exp().sin(), x, use_reentrant=False).sum().backward()

    dump = recorded(debugger, run)
    assert "Aten.exp.default.0.forward#recompute" in dump.data
    assert dump.parents["Aten.exp.default.0.forward#recompute"] == "Tensor.exp.0.forward#recompute"
    assert dump.parents["Aten.cos.default.0.backward"] == "Tensor.sin.0.backward"


def test_a_kernel_that_raises_keeps_its_inputs_and_the_names_after_it(debugger: Debugger) -> None:
    def run() -> None:
        with pytest.raises(IndexError):
            torch.ops.aten.select.int(torch.ones(2), 0, 5)
        torch.ones(2)[1].exp()

    data = recorded(debugger, run, risk_level="ALL").data
    assert "IndexError" in data["Aten.select.int.0.forward#error"]["error"]
    assert "Aten.select.int.0.forward" in data


def test_a_custom_operator_is_one_kernel_with_its_namespace(debugger: Debugger) -> None:
    @torch.library.custom_op("msprobe_test::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x.exp() * 2

    dump = recorded(debugger, lambda: doubled(torch.zeros(2)))
    assert dump.data["Aten.msprobe_test.doubled.default.0.forward"]["output"][0]["Max"] == 2.0
    assert "Aten.exp.default.0.forward" not in dump.data


def adamw(**options: bool) -> torch.optim.Optimizer:
    parameter = nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    return torch.optim.AdamW([parameter], **options)


def test_kernels_of_an_optimiser_have_it_as_parent(debugger: Debugger) -> None:
    dump = recorded(debugger, adamw(fused=True).step)
    assert dump.parents["Torch._fused_adamw_.0.forward"] == "optimizer"
    assert dump.parents["Aten._fused_adamw_.default.0.forward"] == "Torch._fused_adamw_.0.forward"
    assert dump.data["Aten._fused_adamw_.default.0.forward"]["output"][0][0]["Max"] < 1.0


def test_kernels_of_an_optimiser_that_is_not_fused_stand_under_its_calls(debugger: Debugger) -> None:
    dump = recorded(debugger, adamw(foreach=False).step)
    assert dump.parents["Aten.addcdiv_.default.0.forward"] == "Tensor.addcdiv_.0.forward"
    assert dump.parents["Tensor.addcdiv_.0.forward"] == "optimizer"


def test_kernels_of_a_second_thread_that_runs_a_module_are_seen(debugger: Debugger) -> None:
    model = nn.Sequential(nn.Tanh())

    def run() -> None:
        thread = threading.Thread(target=model, args=(torch.ones(2),))
        thread.start()
        thread.join()

    assert "Aten.tanh.default.0.forward" in recorded(debugger, run, model=model).data


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_mode_of_the_user_sees_the_kernels_of_the_user_only_and_may_end_in_any_order(debugger: Debugger) -> None:
    tool = debugger(level="L2", statistics={"list": ["Aten."]})
    before, inside = Counting(), Counting()
    with before:
        tool.start()
        with inside:
            torch.ones(2).exp()
            tool.stop()
            assert _get_current_dispatch_mode_stack() == [before, inside]
        tool.start()
        torch.ones(2).sin()
    assert len(_get_current_dispatch_mode_stack()) == 1  # ours
    torch.ones(2).cos()
    tool.stop()
    tool.step()
    assert before.seen == ["aten.ones.default", "aten.exp.default", "aten.ones.default", "aten.sin.default"]
    assert inside.seen == before.seen[:2]
    assert [name.split(".")[1] for name in dump_of(tool).data] == ["exp", "sin", "cos"]
    assert_nothing_left([])


def test_stop_inside_an_operator_leaves_no_mode_behind(debugger: Debugger) -> None:
    tool = debugger(level="L2", statistics={"list": ["Aten."]})

    @torch.library.custom_op("msprobe_test::stopping", mutates_args=())
    def stopping(x: torch.Tensor) -> torch.Tensor:
        tool.stop()
        return x.clone()

    tool.start()
    stopping(torch.ones(2))
    tool.step()
    assert_nothing_left([])


def test_switching_on_and_off_leaves_nothing_and_the_steps_are_alike(debugger: Debugger) -> None:
    tool = debugger(level="L2", statistics={"list": ["Aten."]})
    model = nn.Sequential(nn.Linear(3, 3))
    for _ in range(20):
        with tool.capture(model):
            model(torch.ones(1, 3)).sum().backward()
        assert_nothing_left([model])
        model.zero_grad()
    assert list(dump_of(tool, 19).data) == list(dump_of(tool, 0).data)


@pytest.mark.parametrize("warm", [False, True])
def test_a_compiled_function_stays_compiled_and_is_reported(
    debugger: Debugger, caplog: pytest.LogCaptureFixture, warm: bool
) -> None:
    torch._dynamo.reset()
    graphs = []

    def backend(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x: x.exp() + 1, backend=backend, fullgraph=True)
    expected = torch.ones(2).exp() + 1
    if warm:
        compiled(torch.ones(2))
    results = []
    dump = recorded(debugger, lambda: results.extend(compiled(torch.ones(2)) for _ in range(3)))
    assert all(torch.equal(result, expected) for result in results)
    assert torch.equal(compiled(torch.ones(2)), expected)
    assert len(graphs) <= 2
    assert dump.coverage is not None
    assert dump.coverage["not_recorded"]["kernels fused inside a compiled function (torch.compile)"] >= 3
    assert sum("stays compiled at level L2" in record.getMessage() for record in caplog.records) == 1


def test_a_higher_order_operator_runs_and_what_is_inside_is_counted(debugger: Debugger) -> None:
    from torch._higher_order_ops.wrap import wrap

    results = []
    dump = recorded(debugger, lambda: results.append(wrap(lambda x: x.exp(), torch.zeros(2))))
    assert torch.equal(results[0], torch.ones(2))
    assert dump.coverage is not None
    assert ("Aten.exp.default.0.forward" in dump.data) or (
        "kernels inside the higher-order operator wrap" in dump.coverage["not_recorded"]
    )


def test_kernels_after_stop_are_not_recorded(debugger: Debugger) -> None:
    tool = debugger(level="L2", statistics={"list": ["Aten."]})
    tool.start()
    loss = torch.ones(2, requires_grad=True).exp().sum()
    tool.stop()
    loss.backward()
    tool.step()
    assert list(dump_of(tool).data) == ["Aten.exp.default.0.forward", "Aten.sum.default.0.forward"]


def test_a_backward_kernel_of_a_node_that_two_threads_may_have_made_has_no_parent(debugger: Debugger) -> None:
    model = nn.Sequential(nn.Tanh())
    results: list[torch.Tensor] = []

    def forward() -> None:  # autograd numbers the nodes of a new thread from 0
        results.append(model(torch.ones(2, requires_grad=True)))

    def run(threads: int) -> None:
        for _ in range(threads):
            thread = threading.Thread(target=forward)
            thread.start()
            thread.join()
        results.pop().sum().backward()

    name = "Aten.tanh_backward.default.0.backward"
    assert recorded(debugger, lambda: run(1), model=model).parents[name] == "Torch.tanh.0.backward"
    assert recorded(debugger, lambda: run(2), model=model).parents[name] is None


def test_a_module_dump_says_that_it_does_nothing(debugger: Debugger, caplog: pytest.LogCaptureFixture) -> None:
    from msprobe.pytorch import module_dump

    recorded(debugger, lambda: module_dump(nn.Linear(1, 1), "name"))
    assert 'module_dump() does nothing at level "L2"' in caplog.text


def test_a_tracer_of_the_user_is_not_recorded(debugger: Debugger) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    dump = recorded(debugger, lambda: make_fx(lambda x: x.exp(), tracing_mode="fake")(torch.ones(2)))
    assert "Aten.exp.default.0.forward" not in dump.data


def test_inside_inference_mode_a_composite_operator_is_one_kernel(debugger: Debugger) -> None:
    def run() -> None:
        with torch.inference_mode():
            F.linear(torch.ones(2, 3), torch.ones(4, 3), torch.ones(4))

    assert list(recorded(debugger, run).data) == ["Aten.linear.default.0.forward"]
