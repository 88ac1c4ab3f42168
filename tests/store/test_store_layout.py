"""Folders of a run: an earlier run is moved aside, sibling processes are not, ranks are renamed."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from store_cases import open_step, open_writer, run, script

from msprobe.store import RunLayout, read_dump
from msprobe.store.process_start import RUN_STARTED, RunStart, moment_now, process_start, run_start, start_ticks

RUN = """
layout = RunLayout(sys.argv[1], rank=int(sys.argv[3]) if len(sys.argv) > 3 else None)
for step in range(2):
    writer = layout.open_step(step, task="statistics", level="L1", framework="pytorch", extra_info=True, tensors=True,
                              render_stack=lambda key: [])
    writer.add(sys.argv[2], {"step": step})
    writer.finish({})
"""


def fresh() -> dict[str, str]:
    """Return an environment as a new launch has it, without the mark of the test process."""
    return {key: value for key, value in os.environ.items() if key != RUN_STARTED}


def names_in(folder: Path) -> set[str]:
    return {name for file in folder.glob("step*/*/dump.json") for name in read_dump(file).data}


@pytest.fixture(autouse=True)
def _own_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RUN_STARTED, raising=False)


def test_a_second_run_moves_the_first_aside_and_says_which(tmp_path: Path) -> None:
    assert run(RUN, tmp_path, "first", 0, environment=fresh()).returncode == 0
    second = run(RUN, tmp_path, "second", 0, environment=fresh())
    assert second.returncode == 0
    assert names_in(tmp_path) == {"second"}
    (moved,) = (tmp_path / "earlier").iterdir()
    assert names_in(moved) == {"first"}
    assert read_dump(moved / "step1" / "rank0").complete
    warnings = [line for line in second.stderr.splitlines() if "LOG msprobe" in line]
    assert len(warnings) == 1
    assert "step0, step1" in warnings[0]
    assert str(moved) in warnings[0]


def test_every_run_gets_its_own_place(tmp_path: Path) -> None:
    for name in ("first", "second", "third"):
        assert run(RUN, tmp_path, name, environment=fresh()).returncode == 0
    assert names_in(tmp_path) == {"third"}
    assert [names_in(place) for place in sorted((tmp_path / "earlier").iterdir())] == [{"first"}, {"second"}]


def test_ranks_started_together_do_not_move_each_other(tmp_path: Path) -> None:
    """One launcher starts all ranks; they reach their first step at different times."""
    assert run(RUN, tmp_path, "old", 0, environment=fresh()).returncode == 0
    waiting = "time.sleep(int(sys.argv[3]) * 0.25)\n" + RUN
    ranks = [
        subprocess.Popen([*script(waiting), str(tmp_path), f"rank{rank}", str(rank)], env=fresh()) for rank in range(4)
    ]
    assert [process.wait(60) for process in ranks] == [0] * 4
    assert names_in(tmp_path) == {f"rank{rank}" for rank in range(4)}
    assert len(list(tmp_path.glob("step*/rank*"))) == 8
    (moved,) = (tmp_path / "earlier").iterdir()
    assert names_in(moved) == {"old"}


def test_ranks_racing_for_an_earlier_run_move_it_once(tmp_path: Path) -> None:
    same_run = fresh() | {RUN_STARTED: RunStart(1.0, moment_now().boot, 1.0).text()}
    for rank in range(3):
        assert run(RUN, tmp_path, f"old{rank}", rank, environment=same_run).returncode == 0
    ranks = [subprocess.Popen([*script(RUN), str(tmp_path), f"new{n}", str(n)], env=fresh()) for n in range(3)]
    assert [process.wait(60) for process in ranks] == [0] * 3
    assert names_in(tmp_path) == {"new0", "new1", "new2"}
    earlier = {name for place in (tmp_path / "earlier").iterdir() for name in names_in(place)}
    assert earlier == {"old0", "old1", "old2"}


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_children_started_later_belong_to_the_run(tmp_path: Path, method: str) -> None:
    """A process that a run starts an hour later must not take the run's own folders for old ones."""
    file = tmp_path / "main.py"
    file.write_text(
        "import multiprocessing, sys, time\n"
        "from pathlib import Path\n"
        "from msprobe.store import RunLayout\n"
        "def work(path, name, rank):\n"
        "    layout = RunLayout(path, rank=rank)\n"
        "    writer = layout.open_step(0, task='statistics', level='L1', framework='pytorch', extra_info=True,\n"
        "                              tensors=False, render_stack=lambda key: [])\n"
        "    writer.add(name, {})\n"
        "    writer.finish({})\n"
        "if __name__ == '__main__':\n"
        "    work(sys.argv[1], 'parent', None)\n"
        "    time.sleep(0.1)\n"
        f"    context = multiprocessing.get_context('{method}')\n"
        "    children = [context.Process(target=work, args=(sys.argv[1], f'child{n}', None)) for n in range(2)]\n"
        "    [child.start() for child in children]\n"
        "    [child.join() for child in children]\n"
        "    assert [child.exitcode for child in children] == [0, 0]\n"
    )
    import sys

    done = subprocess.run(
        [sys.executable, file, tmp_path / "out"], env=fresh(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert names_in(tmp_path / "out") == {"parent", "child0", "child1"}
    assert not (tmp_path / "out" / "earlier").exists()


def test_a_step_number_used_twice_keeps_both(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    layout = RunLayout(tmp_path, rank=0)
    for value in (1, 2):
        writer = open_step(layout)
        writer.add("a", {"v": value})
        writer.finish({})
    assert read_dump(tmp_path / "step0" / "rank0").data == {"a": {"v": 2}}
    (moved,) = (tmp_path / "earlier").iterdir()
    assert read_dump(moved / "step0" / "rank0").data == {"a": {"v": 1}}
    assert len(caplog.messages) == 1
    assert "step number used twice" in caplog.messages[0]


def test_a_run_that_is_still_writing_keeps_its_data_when_it_is_moved(tmp_path: Path) -> None:
    old = RunLayout(tmp_path, rank=0)
    writer = open_step(old)
    writer.add("a", {})
    writer.flush()
    past = time.time() - 10_000
    os.utime(tmp_path / "step0", (past, past))
    new = open_step(RunLayout(tmp_path, rank=0))
    writer.add("b", {})
    assert writer.write_tensor("b.pt", lambda file: file.write(b"x")) == "b.pt"
    writer.finish({})
    new.add("c", {})
    new.finish({})
    (moved,) = (tmp_path / "earlier").iterdir()
    assert list(read_dump(moved / "step0" / "rank0").data) == ["a", "b"]
    assert (moved / "step0" / "rank0" / "dump_tensor_data" / "b.pt").exists()
    assert list(read_dump(tmp_path / "step0" / "rank0").data) == ["c"]


@pytest.mark.parametrize("moved_along", [True, False])
def test_a_folder_made_while_another_run_takes_the_path_ends_up_beside_it(tmp_path: Path, moved_along: bool) -> None:
    """The other run writes its mark between the two looks at it, and may or may not see the folder yet."""
    folder, aside = tmp_path / "step0" / "rank0", tmp_path / "earlier" / "then" / "step0" / "rank0"
    looks = 0

    def place(asked: Path) -> Path:
        nonlocal looks
        looks += 1
        if looks == 1:
            return asked
        if moved_along and folder.is_dir():
            aside.parent.mkdir(parents=True)
            folder.rename(aside)
        return aside

    writer = open_writer(folder, place=place)
    writer.add("a", {})
    writer.finish({})
    assert list(read_dump(aside).data) == ["a"]
    assert json.loads((aside / "dump.json").read_bytes())["dump_data_dir"] == str(aside / "dump_tensor_data")
    assert not folder.exists()
    assert not writer.failures


def test_other_things_in_the_dump_path_stay(tmp_path: Path) -> None:
    (tmp_path / "steps.txt").write_text("mine")
    (tmp_path / "step0_notes").mkdir()
    (tmp_path / "step7").mkdir()
    for entry in tmp_path.iterdir():
        os.utime(entry, (1, 1))
    writer = open_step(RunLayout(tmp_path, rank=0))
    writer.finish({})
    assert (tmp_path / "steps.txt").read_text() == "mine"
    assert (tmp_path / "step0_notes").is_dir()
    assert not (tmp_path / "step7").exists()


def test_nothing_is_made_or_moved_before_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "out" / "step0").mkdir(parents=True)
    os.utime(tmp_path / "out" / "step0", (1, 1))
    layout = RunLayout(tmp_path / "out")
    layout.set_rank(3)
    assert layout.step_folder(4) == tmp_path / "out" / "step4" / "rank3"
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == ["step0"]


def test_without_a_rank_the_folder_is_named_after_the_process(tmp_path: Path) -> None:
    writer = open_step(RunLayout(tmp_path))
    assert writer.folder == tmp_path / "step0" / f"proc{os.getpid()}"
    writer.finish({})


@pytest.mark.parametrize("flushed", [True, False], ids=["folder made", "folder not made yet"])
def test_a_rank_that_appears_later_renames_open_and_finished_steps(tmp_path: Path, flushed: bool) -> None:
    layout = RunLayout(tmp_path)
    first = open_step(layout, 0)
    first.add("a", {})
    first.finish({})
    second = open_step(layout, 1)
    second.add("a", {})
    if flushed:
        second.flush()
    layout.set_rank(5)
    second.add("b", {})
    second.finish({})
    third = open_step(layout, 2)
    third.add("a", {})
    third.finish({})
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.glob("step*/*")} == {
        "step0/rank5",
        "step1/rank5",
        "step2/rank5",
    }
    assert list(read_dump(second.folder).data) == ["a", "b"]
    head = json.loads((tmp_path / "step1" / "rank5" / "dump.json").read_bytes())
    assert head["dump_data_dir"] == str(tmp_path / "step1" / "rank5" / "dump_tensor_data")


@pytest.mark.parametrize("flushed", [True, False], ids=["folder made", "folder not made yet"])
def test_a_rank_folder_that_exists_is_not_replaced_by_a_rename(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, flushed: bool
) -> None:
    other = open_step(RunLayout(tmp_path, rank=1))
    other.add("other", {})
    other.finish({})
    layout = RunLayout(tmp_path)
    writer = open_step(layout)
    writer.add("mine", {})
    if flushed:
        writer.flush()
    layout.set_rank(1)
    writer.finish({})
    assert list(read_dump(tmp_path / "step0" / "rank1").data) == ["other"]
    assert list(read_dump(tmp_path / "step0" / f"proc{os.getpid()}").data) == ["mine"]
    assert len(caplog.messages) == 1


def test_a_step_without_anything_to_say_leaves_no_folder(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    writer = open_step(layout)
    writer.pause()
    writer.finish({"not_recorded": {}, "recomputed_calls": 0})
    writer.write_tensor("late.pt", lambda file: file.write(b"late"))
    assert not list(tmp_path.glob("step*"))
    second = open_step(layout)
    second.finish({"not_recorded": {"filtered": 3}})
    assert read_dump(second.folder).coverage["not_recorded"] == {"filtered": 3}


def test_a_failure_before_the_first_record_is_in_the_error_log(tmp_path: Path) -> None:
    writer = open_step(RunLayout(tmp_path))
    writer.note_failure("nothing could be hooked")
    writer.finish({})
    assert "nothing could be hooked" in (writer.folder / "dump_error_info.log").read_text()
    assert read_dump(writer.folder).coverage["failures"] == ["nothing could be hooked"]


def test_a_dump_path_link_of_another_user_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    link = tmp_path / "out"
    link.symlink_to(victim)
    if os.geteuid() == 0:
        os.lchown(link, 65534, 65534)
        writer = open_step(RunLayout(link))
    else:  # cannot make somebody else's link; the system's own one is root's and points to a folder of root
        link = Path("/proc/self/fd")
        writer = open_step(RunLayout(link / "nowhere"))
    writer.add("a", {})
    writer.finish({})
    assert writer.failures
    assert list(victim.iterdir()) == []
    assert caplog.messages


def test_the_start_of_this_process_lies_before_its_first_step() -> None:
    before = time.time()
    body = "from msprobe.store.process_start import process_start; print(process_start().epoch, time.time())"
    started, printed = map(float, run(body).stdout.split())
    assert before - 0.05 < started < printed
    assert process_start().epoch < before


def test_a_process_is_known_by_its_start_ticks() -> None:
    child = subprocess.Popen(["sleep", "30"])
    try:
        own, other = start_ticks(os.getpid()), start_ticks(child.pid)
        assert own is not None
        assert other is not None
        assert own < other
    finally:
        child.kill()
        child.wait()
    assert start_ticks(child.pid) is None


@pytest.mark.parametrize("value", ["", "tomorrow", "-5 -5", "nan nan", "99999999999 99999999999", "1.0"])
def test_a_senseless_inherited_start_is_ignored(value: str) -> None:
    if value.startswith("9"):
        value += f" {moment_now().boot}"
    environment: dict[str, Any] = {RUN_STARTED: value}
    own = process_start()
    assert abs(run_start(environment).epoch - own.epoch) < 0.1
    assert RunStart.from_text(environment[RUN_STARTED]).uptime == own.uptime


@pytest.mark.parametrize("jump", [-86400.0, 86400.0], ids=["back", "ahead"])
def test_a_clock_that_jumps_tells_no_two_runs_apart(jump: float) -> None:
    first = moment_now()
    later = RunStart(first.epoch + jump, first.boot, first.uptime + 1.0)
    assert later.after(first)
    assert not first.after(later)
    environment = {RUN_STARTED: RunStart(first.epoch + jump, first.boot, 1.0).text()}
    assert run_start(environment).uptime == 1.0
