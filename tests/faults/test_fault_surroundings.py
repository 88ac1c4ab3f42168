"""The disk, the folder or the system refuses: training goes on with the same numbers, and one message says why."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from disturbed_training import NAMES
from fault_process import Outcome

from msprobe.store import read_dump

Run = Callable[..., Outcome]
STEPS = int(os.environ.get("MSPROBE_FAULT_STEPS", "20000"))
"""`make fuzz` sets 100,000."""
LEVELS = [
    pytest.param({"level": "mix", "task": "statistics"}, id="statistics"),
    pytest.param({"level": "mix", "task": "tensor"}, id="tensor"),
    pytest.param({"level": "L1", "task": "statistics", "async_dump": True}, id="async"),
]


@pytest.fixture(scope="module")
def losses(
    processes: Callable[[list[dict[str, Any]]], list[Outcome]], tmp_path_factory: pytest.TempPathFactory
) -> list[str]:
    """Return the losses of the run without a debugger."""
    folder = str(tmp_path_factory.mktemp("plain"))
    (outcome,) = processes([{"work": "disturbed_training:plain", "folder": folder, "limit": 60.0, "quick": True}])
    return outcome.answer  # type: ignore[no-any-return]


def only_dump(place: Path, step: int) -> Any:
    (rank,) = place.glob(f"process*/dump/step{step}/*")
    return read_dump(rank)


@pytest.mark.parametrize("config", LEVELS)
@pytest.mark.parametrize(
    ("disturbance", "said"),
    [
        ("vanished", "removed while"),
        ("read-only from the start", "Give the current user write permission"),
        ("read-only", "Give the current user write permission"),
        ("unwritable files", "Give the current user write permission"),
        ("file size limit", "file size limit"),
        ("linked step", "symbolic link"),
        ("linked files", "Symbolic links are not followed"),
        ("no file handles", "Too many open files"),
    ],
)
def test_training_goes_on_and_the_reason_is_said_once(
    process: Run, place: Path, losses: list[str], config: dict[str, Any], disturbance: str, said: str
) -> None:
    outcome = process("disturbed_training:disturbed", disturbance=disturbance, unprivileged=True, **config)
    assert outcome.answer == losses
    reasons = [line for line in outcome.warnings if "recorded nothing" not in line]
    assert 1 <= len(reasons) <= 2, outcome.err  # records, and tensors
    assert said in reasons[0], outcome.err
    if disturbance not in {"read-only from the start", "vanished"}:
        first = only_dump(place, 0)
        assert first.complete
        assert not first.coverage["failures"]
    if disturbance in {"unwritable files", "linked step", "linked files", "vanished"}:
        last = only_dump(place, 2)  # trouble of one step is over with it
        assert last.complete
        assert "Functional.linear.0.backward" in last.data
    for file in place.glob("process*/precious"):
        assert file.read_text() == "precious"
    for folder in place.glob("process*/victim"):
        assert not list(folder.iterdir())


@pytest.mark.parametrize("config", LEVELS)
def test_without_a_thread_to_spare_everything_is_recorded(
    process: Run, place: Path, losses: list[str], config: dict[str, Any]
) -> None:
    outcome = process("disturbed_training:disturbed", disturbance="no threads", unprivileged=True, **config)
    assert outcome.answer == losses
    for step in range(3):
        dump = only_dump(place, step)
        assert dump.complete
        assert {"Functional.linear.1.backward", "Torch.sin.39.forward"} <= set(dump.data)
        said = any("no thread could be started" in reason for reason in dump.coverage["failures"])
        assert said or config.get("async_dump")  # which needs none


@pytest.mark.parametrize("config", LEVELS)
def test_a_full_disk_stops_the_dump_and_not_the_training(
    process: Run, place: Path, losses: list[str], config: dict[str, Any]
) -> None:
    disk = place / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=777", "none", str(disk)]
    mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:  # without the right to mount, the limit of file sizes has to do
        outcome = process(
            "disturbed_training:disturbed",
            disturbance="nothing" if mounted else "file size limit",
            dump_path=str(disk / "dump"),
            **config,
        )
        assert outcome.answer == losses
        assert 1 <= len(outcome.warnings) <= 2, outcome.err
        ranks = sorted(disk.glob("dump/step*/*"))
        assert read_dump(ranks[0]).data
        files = [rank / "coverage.json" for rank in ranks]
        # A step that began on a full disk has not even this file; the message is all that can be had.
        assert any(not file.exists() or json.loads(file.read_bytes()).get("failures") for file in files)
    finally:
        if mounted:
            subprocess.run(["umount", str(disk)], check=True)


def test_a_linked_dump_path_of_ones_own_is_followed_and_its_folders_are_closed_to_others(
    process: Run, place: Path
) -> None:
    target = place / "target"
    target.mkdir()
    (target / "notes.txt").write_text("mine")
    link = place / "link"
    link.symlink_to(target)
    outcome = process(
        "disturbed_training:disturbed", disturbance="nothing", level="mix", task="tensor", dump_path=str(link)
    )
    assert outcome.answer
    assert (target / "notes.txt").read_text() == "mine"
    made = [path for path in target.rglob("*") if path.name != "notes.txt"]
    assert len(made) > 30
    for path in made:
        assert path.lstat().st_mode & 0o777 & ~(0o750 if path.is_dir() else 0o640) == 0, path
        assert not path.is_symlink()


def test_no_name_leads_out_of_the_dump(process: Run, place: Path) -> None:
    assert process("disturbed_training:strange_names").answer
    top = {path.name for path in place.iterdir()}
    assert top == {"process0"}
    assert {path.name for path in (place / "process0").iterdir()} == {"config.json", "dump", "err.txt", "out.txt"}
    (rank,) = place.glob("process0/dump/step0/*")
    dump = read_dump(rank)
    assert dump.complete
    assert not dump.coverage["failures"]
    files = {path.name for path in (rank / "dump_tensor_data").iterdir()}
    assert all((rank / "dump_tensor_data" / name).is_file() for name in files)
    for name in NAMES:
        if "." in name:  # torch itself refuses such a module name, so it was put in by force
            continue
        assert any(f".{name}." in record for record in dump.data), name[:20]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_children_and_workers_neither_disturb_nor_enter_the_dump(process: Run, place: Path, method: str) -> None:
    answer = process("disturbed_training:children", method=method).answer
    assert set(answer["codes"]) == {0}
    assert answer["values"] == [12.0, 44.0, 76.0, 108.0]
    (own,) = place.glob("process0/dump/step0/*")
    dump = read_dump(own)
    assert dump.complete
    assert not dump.coverage["failures"]
    assert {"Functional.linear.0.forward", "Functional.linear.3.backward"} <= set(dump.data)
    if method == "spawn":  # a fork holds the debugger of its parent, and that is the parent's
        (child,) = place.glob("process0/child1/dump/step0/*")
        assert list(read_dump(child).data) == ["Torch.relu.0.forward"]


def assert_flat(seen: list[list[int]]) -> None:
    """Whatever grows with the steps shows between the middle and the end, and would be twice that in twice the time."""
    memory, handles = zip(*seen, strict=True)
    assert max(memory[len(seen) // 2 :]) - memory[len(seen) // 2 - 1] < 1 << 20, memory
    assert max(handles) <= handles[0], handles


def test_memory_and_file_handles_stay_flat_over_unrecorded_steps(process: Run, place: Path) -> None:
    """What a day of training does between its few recorded steps; `make fuzz` takes 100,000."""
    wanted = [0, STEPS // 2, STEPS - 1]
    answer = process("disturbed_training:many_steps", limit=580.0, steps=STEPS, wanted=wanted).answer
    assert_flat(answer["seen"])
    assert {path.name for path in place.glob("process0/dump/step*")} == {f"step{number}" for number in wanted}
    assert all(read_dump(rank).complete for rank in place.glob("process0/dump/step*/*"))


def test_memory_and_file_handles_stay_flat_over_recorded_steps(process: Run) -> None:
    steps = STEPS // 50
    assert_flat(process("disturbed_training:many_steps", limit=580.0, steps=steps, wanted=[]).answer["seen"])
