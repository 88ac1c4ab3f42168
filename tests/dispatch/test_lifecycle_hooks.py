"""What start, stop and step leave on the user's objects, in any order and after errors."""

from __future__ import annotations

import copy
import gc
import itertools
import logging
import pickle
import re
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from debugger_traces import assert_nothing_left, dump_of, leftovers
from lifecycle_models import MIX, Factory, Retrying, small_model
from torch import nn


class Passing(torch.overrides.TorchFunctionMode):
    """A mode of the user that changes nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


# -- copies of a model that is being recorded


def test_a_started_model_can_be_saved_and_loads_where_msprobe_does_not_exist(debugger: Factory, tmp_path: Path) -> None:
    tool = debugger(**MIX)
    model = small_model()
    with tool.capture(model), warnings.catch_warnings():
        warnings.simplefilter("error")
        model(torch.ones(2, 4)).sum().backward()
        torch.save(model, tmp_path / "model.pt")
        (tmp_path / "model.pickle").write_bytes(pickle.dumps(model))
        torch.save(model.state_dict(), tmp_path / "state.pt")
    script = textwrap.dedent(f"""
        import sys, pickle
        sys.modules["msprobe"] = None  # importing it fails
        import torch
        saved = torch.load({str(tmp_path / "model.pt")!r}, weights_only=False)
        pickled = pickle.load(open({str(tmp_path / "model.pickle")!r}, "rb"))
        saved.load_state_dict(torch.load({str(tmp_path / "state.pt")!r}))
        for model in (saved, pickled):
            model(torch.ones(2, 4)).sum().backward()
            print(model[0].weight.grad.sum().item() != 0)
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "True"], done.stderr


def test_a_copy_of_a_started_model_works_and_records_nothing_twice(debugger: Factory) -> None:
    tool = debugger(**MIX)
    model = small_model()
    with tool.capture(model):
        twin = copy.deepcopy(model)
        twin(torch.ones(2, 4)).sum().backward()
        model(torch.ones(2, 4)).sum().backward()
    names = [name for name in dump_of(tool).data if name.startswith("Module.")]
    assert [name for name in names if not name.endswith(".0")] == []
    assert "Module.0.Linear.parameters_grad.0" in names
    assert leftovers([twin]) == []


# -- what stop leaves


def python_calls(action: Callable[[], Any]) -> int:
    """Number of calls, of Python and of C functions, that ``action`` makes.

    Without those of the garbage collector, which runs when it likes and finalises what earlier tests left.
    """
    count = 0

    def profile(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.collect()
    gc.disable()
    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_outside_the_wanted_steps_training_makes_the_same_calls_as_without_the_tool(
    debugger: Factory, level: str
) -> None:
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters())

    def train() -> None:
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    train()
    plain = python_calls(train)
    tool = debugger(task="statistics", level=level, step=[1])
    counts = []
    for _ in range(4):
        tool.start(model)
        counts.append(python_calls(train))
        tool.stop()
        counts.append(python_calls(train))
        tool.step()
    assert [counts[0], counts[1], *counts[3:]] == [plain] * 7
    assert counts[2] > plain


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_stop_removes_every_mode_and_hook_also_after_an_error_in_the_step(debugger: Factory, level: str) -> None:
    tool = debugger(task="statistics", level=level)
    model = small_model()
    with pytest.raises(RuntimeError, match="shapes"), tool.capture(model):
        assert leftovers([model])
        model(torch.ones(2, 3))
    assert_nothing_left([model])


def test_public_functions_of_torch_are_the_same_objects_while_recording(debugger: Factory) -> None:
    holders = [torch, torch.Tensor, F, torch.linalg, torch.fft, torch.special, torch.autograd, torch.utils.checkpoint]
    holders += [nn.Module, torch.optim.Optimizer, torch.optim.AdamW, torch.autograd.Function, torch.distributed]

    def public() -> dict[tuple[str, str], Any]:
        return {
            (holder.__name__, name): value
            for holder in holders
            for name, value in vars(holder).items()
            if not name.startswith("_") or name.startswith("__")
        }

    model = small_model()
    F.gelu(torch.ones(1))
    before = public()
    tool = debugger(**MIX)
    with tool.capture(model):
        model(torch.ones(2, 4)).sum().backward()
        during = public()
    assert [key for key, value in during.items() if before.get(key) is not value and key[1] != "__dict__"] == []
    assert before.keys() == during.keys()
    assert "forward" not in vars(model[0])


# -- order of start, stop and step


def expected_records(order: tuple[str, ...]) -> dict[int, int]:
    """How many calls each step should hold when one call is made after every word of ``order``."""
    started, step, records = False, 0, dict[int, int]()
    for word in order:
        if word == "step":
            step += 1
        else:
            started = word == "start"
        if started:
            records[step] = records.get(step, 0) + 1
    return records


def test_start_stop_and_step_in_any_order_lose_nothing_and_do_not_raise(
    debugger: Factory, caplog: pytest.LogCaptureFixture
) -> None:
    for order in itertools.product(("start", "stop", "step"), repeat=4):
        caplog.clear()
        tool = debugger(task="statistics", level="L1")
        for word in order:
            getattr(tool, word)()
            torch.exp(torch.ones(1))
        tool._session.close()
        for step, count in expected_records(order).items():
            names = [f"Torch.exp.{number}.forward" for number in range(count)]
            assert [name for name in dump_of(tool, step).data if "exp" in name] == names, order
        texts = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(texts) == len(set(texts)), order
        assert_nothing_left([])


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (["stop"], r"stop\(\) was called before start\(\)"),
        (["start", "start"], r"start\(\) was called again before stop\(\)"),
        (["start", "step"], r"step\(\) was called before stop\(\)"),
    ],
)
def test_a_wrong_order_is_named_once(
    debugger: Factory, caplog: pytest.LogCaptureFixture, order: list[str], expected: str
) -> None:
    tool = debugger(task="statistics", level="L1")
    for word in order * 3:
        getattr(tool, word)()
    texts = [record.getMessage() for record in caplog.records]
    assert len([text for text in texts if re.search(expected, text)]) == 1


def test_start_and_stop_repeat_inside_a_step_and_indices_go_on(debugger: Factory) -> None:
    tool = debugger(**MIX)
    model = small_model()
    for _ in range(3):
        tool.start(model)
        model(torch.ones(2, 4)).sum().backward()
        tool.stop()
        torch.exp(torch.ones(1))
    tool.step()
    names = dump_of(tool).data
    for number in range(3):
        assert f"Module.0.Linear.forward.{number}" in names
        assert f"Functional.linear.{2 * number + 1}.backward" in names
        assert f"Module.2.Linear.parameters_grad.{number}" in names
    assert not [name for name in names if "exp" in name]


def test_gradients_that_arrive_after_stop_belong_to_calls_made_before(debugger: Factory) -> None:
    tool = debugger(**MIX)
    model = small_model()
    tool.start(model)
    loss = model(torch.ones(2, 4)).sum()
    tool.stop()
    loss.backward()
    tool.step()
    assert "Functional.linear.0.backward" in dump_of(tool).data


def test_gradients_that_arrive_in_a_later_step_are_left_out_and_counted(
    debugger: Factory, caplog: pytest.LogCaptureFixture
) -> None:
    tool = debugger(**MIX)
    model = nn.Sequential(small_model())
    with tool.capture(model):
        loss = model(torch.ones(2, 4)).sum()
    recorded = dump_of(tool, 0).data
    with tool.capture(model):
        loss.backward(retain_graph=True)
        loss.backward()
        torch.exp(torch.ones(1))
    dump = dump_of(tool, 1)
    assert [name for name in dump.data if "backward" in name] == []
    assert "Module.0.0.Linear.parameters_grad.1" in dump.data
    calls = [name for name in recorded if not name.startswith("Torch.ones")]
    assert dump.coverage["not_recorded"]["gradients of a call of an earlier step"] == 2 * len(calls)
    assert len([text for text in caplog.messages if "Call step() after the backward pass" in text]) == 1


def test_parameter_gradients_that_come_after_stop_are_counted(debugger: Factory) -> None:
    tool = debugger(**MIX)
    model = small_model()
    tool.start(model)
    first, second = model(torch.ones(2, 4)).sum(), model(torch.ones(2, 4)).sum()
    tool.stop()
    first.backward()
    tool.step()
    second.backward()
    with tool.capture(model):
        torch.exp(torch.ones(1))
    reason = "parameters_grad of a backward pass after stop()"
    assert [dump_of(tool, step).coverage["not_recorded"][reason] for step in (0, 1)] == [2, 2]


def test_leaving_the_loop_of_steps_early_ends_the_step(debugger: Factory) -> None:
    tool = debugger(**MIX)
    model = small_model()
    for batch in tool.steps([torch.ones(2, 4)] * 5, model):
        model(batch)
        break
    assert_nothing_left([model])
    assert dump_of(tool, 0).complete


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("word", ["stop", "step"])
def test_a_capture_may_be_stopped_from_a_backward_hook(debugger: Factory, level: str, word: str) -> None:
    tool = debugger(task="statistics", level=level)
    model = small_model()
    tool.start(model)
    with Passing() as mode:
        h = model(torch.ones(2, 4))
        h.register_hook(lambda _: getattr(tool, word)())
        h.sum().backward()
        assert torch.overrides._get_current_function_mode_stack()[-1] is mode
    tool.stop()
    tool.step()
    assert_nothing_left([model])
    with tool.capture(model):
        model(torch.ones(2, 4)).sum().backward()
    data = dump_of(tool, tool._session.step_index - 1).data
    assert ("Functional.linear.1.backward" if level == "L1" else "Module.2.Linear.backward.0") in data
    assert not [name for name in data if ".linear.2" in name or name.endswith("backward.1")]


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_capture_may_begin_and_end_inside_a_module(debugger: Factory, level: str) -> None:
    tool = debugger(task="statistics", level=level)
    model = small_model()
    handles = [
        model[0].register_forward_hook(lambda *_: tool.start(model)),
        model[2].register_forward_pre_hook(lambda *_: tool.stop()),
    ]
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
    for handle in handles:
        handle.remove()
    tool.step()
    assert_nothing_left([model])
    assert ("Functional.relu.1.forward" if level == "L1" else "Module.1.ReLU.forward.1") in dump_of(tool).data


# -- errors


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("extra_info", [True, False])
def test_after_an_error_in_a_module_names_and_parents_are_right(
    debugger: Factory, error: type[BaseException], extra_info: bool
) -> None:
    tool = debugger(**MIX, extra_info=extra_info)
    model = nn.Sequential(Retrying(error))
    with tool.capture(model):
        model(torch.ones(2, 4)).sum().backward()
        torch.exp(torch.ones(1))
    dump = dump_of(tool)
    assert "Module.0.last.Linear.backward.0" in dump.data
    if error is ValueError:
        assert dump.data["Module.0.part.Fragile.forward.0#error"]["error"] == "ValueError: negative"
        assert "Module.0.part.Fragile.forward.0" in dump.data
    if extra_info:
        part = "Module.0.part.Fragile.forward.0" if error is ValueError else "Module.0.part.Fragile.forward.1"
        assert dump.parents["Module.0.part.inner.Linear.forward.0"] == part
        assert dump.parents["Module.0.last.Linear.forward.0"] == "Module.0.Retrying.forward.0"
        assert dump.parents["Module.0.Retrying.forward.0"] is None
        assert dump.parents["Torch.exp.0.forward"] is None
        assert dump.parents["Functional.linear.1.forward"] == "Module.0.last.Linear.forward.0"


def test_a_failing_call_keeps_its_inputs_under_a_tag_and_its_index_is_used_again(debugger: Factory) -> None:
    tool = debugger(**MIX)
    model = small_model()
    with tool.capture(model):
        with pytest.raises(RuntimeError, match="multiplied"):
            torch.mm(torch.ones(2, 3), torch.ones(2, 3))
        torch.mm(torch.ones(2, 3), torch.ones(3, 2))
    dump = dump_of(tool)
    failed = dump.data["Torch.mm.0.forward#error"]
    assert failed["error"].startswith("RuntimeError: mat1 and mat2")
    assert [entry["shape"] for entry in failed["input_args"]] == [[2, 3], [2, 3]]
    assert "output" in dump.data["Torch.mm.0.forward"]
    assert set(dump.data) <= set(dump.stacks)
    assert set(dump.data) <= set(dump.parents)


def test_a_failing_optimiser_step_does_not_adopt_later_calls(debugger: Factory) -> None:
    tool = debugger(**MIX)
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def fail() -> torch.Tensor:
        raise ArithmeticError("in the closure")

    with tool.capture(model):
        model(torch.ones(2, 4)).sum().backward()
        with pytest.raises(ArithmeticError):
            optimizer.step(fail)
        torch.exp(torch.ones(1))
    assert dump_of(tool).parents["Torch.exp.0.forward"] is None
