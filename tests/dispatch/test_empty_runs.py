"""A run or a step that captured nothing: no folder, and one warning that says why."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from debugger_traces import dump_of
from lifecycle_models import Factory, small_model

TASKS = pytest.mark.parametrize(
    ("task", "level"),
    [("statistics", "L0"), ("statistics", "L1"), ("statistics", "mix"), ("tensor", "mix"), ("structure", "mix")],
)


def folders(tool: Any) -> list[str]:
    return sorted(path.name for path in Path(tool._session.config.dump_path).glob("step*"))


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@TASKS
def test_steps_without_a_call_leave_no_folder_and_one_warning(
    debugger: Factory, caplog: pytest.LogCaptureFixture, task: str, level: str
) -> None:
    tool = debugger(task=task, level=level, **({"tensor": {"list": []}} if task == "tensor" else {}))
    for _ in range(3):
        tool.start(small_model())
        tool.stop()
        tool.step()
    tool._session.close()
    assert folders(tool) == []
    (text,) = warnings_of(caplog)
    assert "no call was made between start() and stop()" in text


@TASKS
def test_only_the_steps_with_calls_have_a_folder(
    debugger: Factory, caplog: pytest.LogCaptureFixture, task: str, level: str
) -> None:
    tool = debugger(task=task, level=level, step=[1, 2])
    model = small_model()
    for number in range(5):
        tool.start(model)
        if number != 2:
            model(torch.ones(2, 4)).sum().backward()
        tool.stop()
        tool.step()
    tool._session.close()
    assert folders(tool) == ["step1"]
    assert warnings_of(caplog) == []


def test_a_step_whose_calls_are_all_left_out_says_so_in_its_folder(
    debugger: Factory, caplog: pytest.LogCaptureFixture
) -> None:
    tool = debugger(task="statistics", level="L1", statistics={"list": ["nowhere"]})
    with tool.capture():
        torch.exp(torch.ones(2))
    tool._session.close()
    assert dump_of(tool).coverage["not_recorded"]["filtered by scope or list"] >= 1
    assert "every call was left out" in warnings_of(caplog)[-1]


def test_a_place_that_cannot_be_written_is_the_reason_and_not_the_calls(
    debugger: Factory, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("mine")
    tool = debugger(task="statistics", level="L1", dump_path=str(tmp_path / "file"))
    with tool.capture():
        torch.exp(torch.ones(2))
    tool._session.close()
    texts = warnings_of(caplog)
    assert len(texts) == 2
    assert all(f"{tmp_path / 'file'} is a file, not a folder" in text for text in texts)


def test_a_folder_that_cannot_be_made_is_the_reason(
    debugger: Factory, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    tool = debugger(task="statistics", level="L1")
    (tmp_path / "dump0").mkdir()
    (tmp_path / "dump0" / "step0").write_text("in the way")
    with tool.capture():
        torch.exp(torch.ones(2))
    tool._session.close()
    assert "it could not be written" in warnings_of(caplog)[-1]


SPAWNING = """
import sys, torch
from msprobe.pytorch import PrecisionDebugger

class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, i): return torch.exp(torch.full((4,), float(i)) / 8)

tool = PrecisionDebugger(dump_path=sys.argv[1], task="statistics", level="mix")

if __name__ == "__main__":
    model = torch.nn.Sequential(torch.nn.Linear(4, 1))
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=1, multiprocessing_context="spawn")
    with tool.capture(model):
        for batch in loader:
            model(batch).sum().backward()
"""


def test_spawned_workers_that_never_start_say_nothing(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SPAWNING)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(tmp_path / "dump")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "msprobe" not in done.stderr
    assert len(list((tmp_path / "dump").glob("step*/*"))) == 1
