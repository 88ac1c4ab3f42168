"""What a recording does to memory, and how it gets on with processes, threads and modes around it."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import tracemalloc
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from debugger_traces import dump_of
from lifecycle_models import MIX, Factory, Retrying, small_model
from neutral_autograd_scenarios import Cubed
from torch import nn

from msprobe.store import read_dump

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
def test_twenty_steps_leave_no_object_behind_without_the_garbage_collector(debugger: Factory, level: str) -> None:
    counts = grow(debugger(task="statistics", level=level, risk_level="ALL"), (3, 20), lambda: len(gc.get_objects()))
    assert counts[1] - counts[0] <= 20


def test_memory_is_flat_over_steps(debugger: Factory) -> None:
    """Objects of before the measurement are replaced by measured ones for some steps: these do not count."""
    tracemalloc.start()
    try:
        sizes = grow(debugger(**MIX), (20, 10), lambda: tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert sizes[1] - sizes[0] < 30_000


def grow(tool: Any, portions: tuple[int, ...], measure: Callable[[], int]) -> list[int]:
    """What ``measure`` says after each portion of steps; only reference counts free memory in between."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    gc.collect()
    gc.disable()
    try:
        for steps in portions:  # a loop: every further place of calling is one more stack to remember
            train_some_steps(tool, model, optimizer, steps)
            found.append(measure())
    finally:
        gc.enable()
    return found


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


def test_a_call_of_an_optimiser_is_little_work_for_the_garbage_collector(debugger: Factory) -> None:
    """Collections come with the number of container objects: a full one takes longer than a whole recorded step."""
    tool = debugger(task="statistics", level="L1", risk_level="ALL")
    parameters = [nn.Parameter(torch.ones(4)) for _ in range(400)]
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.5, foreach=False)
    for parameter in parameters:
        parameter.grad = torch.ones(4)
    grown = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(4):
            with tool.capture():
                before = gc.get_count()[0]
                optimizer.step()
                grown.append(gc.get_count()[0] - before)
    finally:
        gc.enable()
    calls = sum(name.endswith(".forward") for name in dump_of(tool, 3).data)
    assert calls >= 1200
    assert grown[-1] < 0.5 * calls, (grown, calls)


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
