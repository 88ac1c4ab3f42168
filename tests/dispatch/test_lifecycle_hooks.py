"""What start, stop and step leave on the user's objects, and what they survive."""

from __future__ import annotations

import copy
import gc
import itertools
import logging
import pickle
import subprocess
import sys
import textwrap
import tracemalloc
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from debugger_traces import assert_nothing_left, dump_of, leftovers
from neutral_autograd_scenarios import Cubed
from torch import nn

MIX = {"task": "statistics", "level": "mix", "risk_level": "ALL"}
Factory = Callable[..., Any]


def small_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))


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
    """Number of calls, of Python and of C functions, that ``action`` makes."""
    count = 0

    def profile(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
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
    assert len([text for text in texts if pytest.importorskip("re").search(expected, text)]) == 1


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


def test_gradients_that_arrive_in_a_later_step_are_left_out(debugger: Factory) -> None:
    tool = debugger(**MIX)
    model = small_model()
    with tool.capture(model):
        loss = model(torch.ones(2, 4)).sum()
    with tool.capture(model):
        loss.backward()
        torch.exp(torch.ones(1))
    assert [name for name in dump_of(tool, 1).data if "backward" in name] == []


def test_leaving_the_loop_of_steps_early_ends_the_step(debugger: Factory) -> None:
    tool = debugger(**MIX)
    model = small_model()
    for batch in tool.steps([torch.ones(2, 4)] * 5, model):
        model(batch)
        break
    assert_nothing_left([model])
    assert dump_of(tool, 0).complete


# -- errors


class Fragile(nn.Module):
    """Raises when its input is negative."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, error: type[BaseException] = ValueError) -> torch.Tensor:
        if x.sum() < 0:
            raise error("negative")
        return self.inner(x)


class Retrying(nn.Module):
    """Catches what its part raises and tries again."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.error = error
        self.part = Fragile()
        self.last = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            h = self.part(-x, self.error)
        except BaseException as error:
            if not isinstance(error, self.error):
                raise
            h = self.part(x)
        return self.last(h)


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


# -- memory


def train_some_steps(tool: Any, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for number in range(steps):
        with tool.capture(model):
            optimizer.zero_grad()
            x = torch.full((2, 4), float(number), requires_grad=True)
            loss = Cubed.apply(model(x), 0.5)[0].square().sum() + (lambda v: F.gelu(v).sum())(x)
            loss.backward(retain_graph=True)
            loss.backward()
            optimizer.step()


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_memory_is_flat_over_steps_without_the_garbage_collector(debugger: Factory, level: str) -> None:
    tool = debugger(task="statistics", level=level, risk_level="ALL")
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    marks: list[tuple[int, int]] = []
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for steps in (100, 20, 20):  # one loop, and long enough for the interpreter's own free lists to fill
            train_some_steps(tool, model, optimizer, steps)
            marks.append((len(gc.get_objects()), tracemalloc.get_traced_memory()[0]))
    finally:
        tracemalloc.stop()
        gc.enable()
    (objects, size), (more_objects, more_size) = marks[1:]
    more, grown = more_objects - objects, more_size - size
    assert more <= 20, f"{more} objects more after 20 steps"
    assert grown < 20_000, f"{grown} bytes more after 20 steps"


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_nothing_of_the_tool_is_left_to_the_garbage_collector(debugger: Factory, level: str) -> None:
    tool = debugger(task="statistics", level=level, risk_level="ALL")
    model = nn.Sequential(Retrying(ValueError), *small_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train_some_steps(tool, model, optimizer, 2)
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        train_some_steps(tool, model, optimizer, 3)
        gc.collect()
        found = [thing for thing in gc.garbage if owner_of(thing).startswith("msprobe")]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert found == []


def owner_of(thing: Any) -> str:
    return str(thing.__module__ if isinstance(thing, FunctionType) else type(thing).__module__)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_activations_die_when_they_would_without_the_tool(debugger: Factory, level: str) -> None:
    tool = debugger(task="tensor", level=level, risk_level="ALL")
    alive: list[bool] = []

    class Watching(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = x + 1
            held = weakref.ref(h)
            y = h + 1
            del h
            alive.append(held() is not None)
            return y

    model = nn.Sequential(Watching(), nn.Linear(4, 1))
    gc.disable()
    try:
        with tool.capture(model):
            x = torch.ones(2, 4, requires_grad=True)
            loss = model(x).sum()
            loss.backward()
            seen = weakref.ref(x)
            del x, loss
            alive.append(seen() is not None)
    finally:
        gc.enable()
    assert alive == [False, False]


def test_storage_that_the_user_frees_after_use_is_never_read_again(debugger: Factory) -> None:
    """As sharded training does between forward and backward."""
    tool = debugger(task="tensor", level="mix", risk_level="ALL")
    model = small_model()
    with tool.capture(model):
        x = torch.ones(2, 4)
        model(x)
        x.untyped_storage().resize_(0)
        assert x.untyped_storage().size() == 0
        x.untyped_storage().resize_(32)
        x.fill_(2)
    assert dump_of(tool).data["Functional.linear.0.forward"]["input_args"][0]["Max"] == 1.0


# -- other processes, threads and modes

FORKED = """
import os, sys, torch
from msprobe.pytorch import PrecisionDebugger
tool = PrecisionDebugger(dump_path=sys.argv[1], task="statistics", level="mix")
model = torch.nn.Sequential(torch.nn.Linear(4, 4))
tool.start(model)
model(torch.ones(2, 4))
child = os.fork()
if child == 0:
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        torch.exp(torch.ones(1))
    tool.stop(); tool.step(); tool.start(model); torch.exp(torch.ones(1)); tool.stop(); tool.step()
    sys.exit(0)  # with all atexit functions
_, status = os.waitpid(child, 0)
assert status == 0, status
torch.sin(torch.ones(1))
tool.stop()
tool.step()
"""


def run_script(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_forked_child_records_nothing_and_does_not_disturb_its_parent(tmp_path: Path) -> None:
    from msprobe.store import read_dump

    run_script(FORKED, str(tmp_path / "dump"))
    folders = [path.relative_to(tmp_path / "dump") for path in (tmp_path / "dump").glob("step*/*")]
    assert len(folders) == 1, folders
    dump = read_dump(tmp_path / "dump" / folders[0])
    assert list(dump.data) == [
        "Functional.linear.0.forward",
        "Module.0.Linear.forward.0",
        "Torch.sin.0.forward",
    ]
    assert dump.complete


LOADER = """
import sys, torch
from msprobe.pytorch import PrecisionDebugger

class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return torch.exp(torch.full((4,), float(i)) / 8)

if __name__ == "__main__":
    tool = PrecisionDebugger(dump_path=sys.argv[1], task="statistics", level="mix")
    model = torch.nn.Sequential(torch.nn.Linear(4, 1))
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2)
    tool.start(model)
    for batch in loader:
        model(batch).sum().backward()
    tool.stop()
    tool.step()
"""


def test_workers_of_a_data_loader_record_nothing(tmp_path: Path) -> None:
    from msprobe.store import read_dump

    (tmp_path / "loader.py").write_text(LOADER)
    start = f"import runpy, sys; runpy.run_path({str(tmp_path / 'loader.py')!r}, run_name='__main__')"
    run_script(start, str(tmp_path / "dump"))
    (folder,) = (tmp_path / "dump").glob("step*/*")
    names = list(read_dump(folder).data)
    assert [name for name in names if "exp" in name] == []
    assert "Functional.linear.1.forward" in names


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize("extra_info", [True, False])
def test_modules_that_run_in_other_threads_are_recorded_and_their_threads_left_clean(
    debugger: Factory, level: str, extra_info: bool
) -> None:
    import threading

    tool = debugger(task="statistics", level=level, extra_info=extra_info)
    model = small_model()
    left: list[Any] = []

    def run() -> None:
        model(torch.ones(2, 4)).sum().backward()
        left.extend(torch.overrides._get_current_function_mode_stack())

    with tool.capture(model):
        for _ in range(2):
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
    names = dump_of(tool).data
    assert {f"Functional.linear.{number}.{way}" for number in range(4) for way in ("forward", "backward")} <= set(names)
    assert left == []


class Doubling(torch.overrides.TorchFunctionMode):
    """A mode of the user that changes what a function does."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.exp else result


def test_a_mode_of_the_user_may_end_before_the_recording_that_began_inside_it(debugger: Factory) -> None:
    tool = debugger(task="statistics", level="L1")
    with Doubling():
        tool.start()
        assert torch.exp(torch.zeros(1)).item() == 2
    assert torch.exp(torch.zeros(1)).item() == 1
    tool.stop()
    tool.step()
    names = dump_of(tool).data
    assert "Torch.exp.1.forward" in names
    assert torch.overrides._get_current_function_mode_stack() == []


def test_a_mode_of_the_user_may_outlive_the_recording_that_it_began_in(debugger: Factory) -> None:
    tool = debugger(task="statistics", level="L1")
    tool.start()
    with Doubling() as mode:
        torch.exp(torch.zeros(1))
        tool.stop()
        assert torch.exp(torch.zeros(1)).item() == 2
        assert torch.overrides._get_current_function_mode_stack() == [mode]
    assert torch.overrides._get_current_function_mode_stack() == []


@pytest.mark.parametrize("inside", [True, False], ids=["start inside", "start outside"])
def test_a_default_device_keeps_its_place_among_the_modes(debugger: Factory, inside: bool) -> None:
    tool = debugger(task="statistics", level="L1")
    if not inside:
        tool.start()
    with torch.device("meta"):
        if inside:
            tool.start()
        assert torch.ones(2).device.type == "meta"
        with Doubling():
            assert torch.empty(2).device.type == "meta"
    assert torch.ones(2).device.type == "cpu"
    torch.exp(torch.ones(1))
    tool.stop()
    tool.step()
    assert "Torch.exp.0.forward" in dump_of(tool).data


def test_transforms_inside_a_recording_and_recording_inside_a_transform(debugger: Factory) -> None:
    tool = debugger(task="statistics", level="L1", risk_level="ALL")

    def loss(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x).square().sum()

    x = torch.arange(6.0).reshape(2, 3)
    with tool.capture():
        per_row = torch.func.vmap(torch.func.grad(loss))(x)
        assert torch.equal(per_row, 2 * x.sin() * x.cos())
    data = dump_of(tool).data
    assert data["Torch.sin.0.forward"]["output"][0]["Max"] == pytest.approx(x.sin().max().item())
