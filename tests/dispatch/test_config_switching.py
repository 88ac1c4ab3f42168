"""``dump_enable``: a run is switched on, off and to other settings by rewriting its config.json."""

from __future__ import annotations

import gc
import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from debugger_traces import assert_nothing_left, leftovers
from lifecycle_models import small_model
from torch import nn

from msprobe.store import read_dump


class Run:
    """A training run and the configuration file that it follows."""

    def __init__(self, make: Callable[..., Any], folder: Path, **content: Any) -> None:
        self.dump = folder / "dump0"
        self.file = folder / "config0.json"
        self.tool = make(**content)
        self.model = small_model()
        self.number = 0

    def rewrite(self, **content: Any) -> None:
        self.file.write_text(json.dumps({"dump_path": str(self.dump), **content}))

    def call(self) -> None:
        self.model.zero_grad()
        output = self.model(torch.ones(2, 4))
        if self.tool._session.config.level == "debug":
            self.tool.save(output, "saved")
        output.sum().backward()

    def step(self, model: nn.Module | None = None) -> None:
        self.tool.start(model if model is not None else self.model)
        self.call()
        self.tool.stop()
        self.tool.step()
        self.number += 1

    def names(self, step: int) -> list[str]:
        folders = list((self.dump / f"step{step}").glob("*"))
        return list(read_dump(folders[0]).data) if folders else []


@pytest.fixture
def run(debugger: Callable[..., Any], tmp_path: Path) -> Iterator[Callable[..., Run]]:
    return lambda **content: Run(debugger, tmp_path, **content)


def kinds(names: list[str]) -> set[str]:
    special = {"Module": "module", "Aten": "kernel", "saved": "value", "saved_grad": "value"}
    return {special.get(name.split(".")[0], "api") for name in names}


def test_a_run_that_starts_switched_off_is_switched_on_and_off_again(run: Callable[..., Run]) -> None:
    one = run(dump_enable=False, level="L0")
    one.step()
    assert not one.dump.exists()
    one.rewrite(dump_enable=True, level="L0")
    one.step()
    one.rewrite(dump_enable=False, level="L0")
    one.step()
    assert [bool(one.names(step)) for step in range(3)] == [False, True, False]
    assert_nothing_left([one.model])


LEVELS = {
    "L0": {"module"},
    "L1": {"api"},
    "L2": {"kernel"},
    "mix": {"api", "module"},
    "debug": {"value"},
}


def test_any_level_changes_to_any_other(run: Callable[..., Run]) -> None:
    one = run(dump_enable=True, level="L0")
    expected = {}
    for first in LEVELS:
        for second in LEVELS:
            for level in (first, second):
                named = {"statistics": {"list": ["linear"]}} if level == "L2" else {}
                one.rewrite(dump_enable=True, level=level, **named)
                expected[one.number] = LEVELS[level]
                one.step()
    assert {step: kinds(one.names(step)) for step in expected} == expected
    assert_nothing_left([one.model])


CHANGES = {
    "task": {"task": "tensor"},
    "list": {"statistics": {"list": ["relu"]}},
    "summary_mode": {"statistics": {"summary_mode": "xor"}},
    "extra_info": {"extra_info": False},
    "data_mode": {"statistics": {"data_mode": ["forward"]}},
    "precision": {"precision": "high"},
    "risk_level": {"risk_level": "ALL"},
}


@pytest.mark.parametrize("key", CHANGES)
def test_any_other_key_counts_from_the_next_step_as_if_the_run_had_begun_with_it(
    run: Callable[..., Run], debugger: Callable[..., Any], key: str
) -> None:
    one = run(dump_enable=True, level="mix")
    one.step()
    one.rewrite(dump_enable=True, level="mix", **CHANGES[key])
    one.step()
    switched = one.dump / "step1"
    fresh = debugger(level="mix", **CHANGES[key])
    with fresh.capture(one.model):
        one.call()
    (folder,), (expected,) = switched.iterdir(), Path(fresh._session.config.dump_path, "step0").iterdir()
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    assert files == sorted(str(path.relative_to(expected)) for path in expected.rglob("*"))
    found, wanted = read_dump(folder), read_dump(expected)
    assert (found.task, found.level, found.data, found.parents) == (
        wanted.task,
        wanted.level,
        wanted.data,
        wanted.parents,
    )


def test_dump_path_step_and_rank_change_while_running(
    run: Callable[..., Run], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = run(dump_enable=True, level="L1")
    one.step()
    one.dump = tmp_path / "other place"
    one.rewrite(dump_enable=True, level="L1", step=[2, 4])
    for _ in range(4):
        one.step()
    assert sorted(path.name for path in one.dump.glob("step*")) == ["step2", "step4"]
    one.rewrite(dump_enable=True, level="L1", rank=[3])
    one.step()
    one.tool.start(one.model, rank_id=3)
    one.call()
    one.tool.stop()
    one.tool.step()
    assert (one.dump / "step6" / "rank3" / "dump.json").exists()
    one.dump = tmp_path / "dump0"
    one.rewrite(dump_enable=True, level="L1")
    one.step()  # back in the first folder, whose dumps of this run stay
    assert [bool(one.names(step)) for step in (0, 7)] == [True, True]
    assert not (one.dump / "earlier").exists()


def test_a_step_keeps_the_settings_it_began_with_and_only_the_switch_counts_at_once(run: Callable[..., Run]) -> None:
    one = run(dump_enable=True, level="L1")
    tool = one.tool
    tool.start(one.model)
    one.call()
    tool.stop()
    one.rewrite(dump_enable=True, level="L0")
    tool.start(one.model)
    one.call()
    tool.stop()
    one.rewrite(dump_enable=False, level="L0")
    tool.start(one.model)
    one.call()
    tool.stop()
    one.rewrite(dump_enable=True, level="mix")
    tool.start(one.model)
    torch.exp(torch.ones(1))
    tool.stop()
    tool.step()
    one.number = 1
    one.step()
    first = one.names(0)
    assert kinds(first) == {"api"}
    assert [name for name in first if "linear" in name and "forward" in name] == [
        f"Functional.linear.{number}.forward" for number in range(4)
    ]
    assert "Torch.exp.0.forward" in first
    assert kinds(one.names(1)) == {"api", "module"}


def test_a_capture_that_is_never_stopped_is_switched_at_step(run: Callable[..., Run]) -> None:
    one = run(dump_enable=False, level="L1")
    one.tool.start(one.model)
    for switch, level in ((True, "mix"), (False, "mix"), (True, "L0")):
        one.call()
        one.rewrite(dump_enable=switch, level=level)
        one.tool.step()
    one.call()
    one.tool.stop()
    one.tool.step()
    assert [kinds(one.names(step)) for step in range(4)] == [set(), {"api", "module"}, set(), {"module"}]


@pytest.mark.parametrize("first", ["L1", "off"])
def test_a_server_that_gives_no_model_is_switched_to_modules_all_the_same(run: Callable[..., Run], first: str) -> None:
    one = run(dump_enable=first != "off", level="L1")

    def serve() -> None:
        one.tool.start()
        one.call()
        nn.MSELoss()(torch.ones(1), torch.ones(1))
        one.tool.stop()
        one.tool.step()

    serve()
    for _ in range(2):
        one.rewrite(dump_enable=True, level="mix")
        serve()
        serve()
        assert_nothing_left([one.model])
        one.rewrite(dump_enable=True, level="L1")
        serve()
    given = run(dump_enable=True, level="mix")
    given.dump = given.dump.parent / "dump1"
    given.model = one.model
    given.tool.start(one.model)
    one.call()
    nn.MSELoss()(torch.ones(1), torch.ones(1))
    given.tool.stop()
    given.tool.step()
    assert one.names(1) == one.names(2) == one.names(4) == one.names(5) == given.names(0)
    assert "Module.2.Linear.parameters_grad.0" in one.names(1)


def test_several_models_that_nobody_names_are_numbered_as_they_are_called(run: Callable[..., Run]) -> None:
    one = run(dump_enable=True, level="L1")
    second = nn.Sequential(nn.TransformerEncoderLayer(4, 2, batch_first=True), one.model)
    one.rewrite(dump_enable=True, level="L0")
    one.tool.step()
    one.tool.start()
    one.call()
    second(torch.ones(1, 2, 4)).sum().backward()
    one.tool.stop()
    one.tool.step()
    names = one.names(1)
    assert "Module.0.Linear.forward.0" in names
    assert "Module.0.Linear.forward.1" in names  # the shared module keeps its first name
    assert "Module.1.0.TransformerEncoderLayer.forward.0" in names
    assert "Module.1.0.self_attn.MultiheadAttention.forward.0" in names
    assert_nothing_left([second])


def test_a_broken_or_missing_file_changes_nothing_and_is_named_once(
    run: Callable[..., Run], caplog: pytest.LogCaptureFixture
) -> None:
    one = run(dump_enable=True, level="L1")
    one.step()
    one.file.write_text("{ broken")
    one.step()
    one.step()
    one.file.unlink()
    one.step()
    one.step()
    one.rewrite(dump_enable=True, level="L0")
    one.step()
    assert [kinds(one.names(step)) for step in range(6)] == [{"api"}] * 5 + [{"module"}]
    texts = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(texts) == 2
    assert "(JSON syntax) (line 1, column 3)" in texts[0]
    assert "No such file" in texts[1]


def test_without_the_key_the_file_is_not_followed(run: Callable[..., Run]) -> None:
    one = run(level="L1")
    one.step()
    one.rewrite(dump_enable=False, level="L0")
    one.step()
    assert kinds(one.names(1)) == {"api"}


SETTINGS = [
    {"level": "L0"},
    {"level": "mix", "statistics": {"summary_mode": "md5"}},
    {"level": "L1", "task": "tensor"},
    {"level": "mix", "task": "structure"},
    {"level": "L0", "dump_enable": False},
]


def switch_often(one: Run, times: int) -> None:
    for _ in range(times):
        one.rewrite(**{"dump_enable": True, **SETTINGS[one.number % len(SETTINGS)]})
        one.step()


def test_fifty_switches_leave_no_hook_mode_handle_thread_or_memory_behind(run: Callable[..., Run]) -> None:
    one = run(dump_enable=True, level="L0")
    fresh = leftovers([one.model])

    def state() -> tuple[int, int, int, int]:
        gc.collect()
        files = len(list(Path("/proc/self/fd").iterdir()))
        return files, threading.active_count(), len(gc.get_objects()), sys.getallocatedblocks()

    switch_often(one, 20)
    before = state()
    switch_often(one, 50)
    after = state()
    assert leftovers([one.model]) == fresh == []
    assert after[0] == before[0]
    assert after[1] <= before[1] + 1  # the thread that flushes comes and goes
    assert after[2] - before[2] <= 60  # one capture has more than that
    assert after[3] - before[3] <= 500
    assert [kinds(one.names(step)) for step in range(65, 70)] == [
        {"module"},
        {"api", "module"},
        {"api"},
        set(),
        set(),
    ]


def test_hooks_keep_their_ids_so_that_compiled_code_stays_valid(run: Callable[..., Run]) -> None:
    one = run(dump_enable=True, level="L0")

    def ids() -> list[int]:
        one.tool.start(one.model)
        found = [number for module in one.model for number in (*module._forward_pre_hooks, *module._forward_hooks)]
        one.tool.stop()
        one.tool.step()
        return found

    first = ids()
    one.rewrite(dump_enable=True, level="mix")
    assert first
    one.tool.step()
    assert ids() == first
