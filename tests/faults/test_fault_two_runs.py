"""Runs that share a dump_path, one after the other or at the same time, whatever the clock says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from msprobe.store import RunLayout, read_dump
from msprobe.store.process_start import RUN_STARTED
from msprobe.store.run_marks import LOCK_FILE

RUN = """
import logging, sys
from msprobe.store import RunLayout
logging.basicConfig(stream=sys.stderr, format="%(message)s")
path, name, rank, wait = sys.argv[1:]
layout = RunLayout(path, rank=int(rank) if rank else None)
for step in range(2):
    writer = layout.open_step(step, task="statistics", level="L1", framework="pytorch", extra_info=True, tensors=False,
                              render_stack=lambda key: [], flush_every=None)
    writer.add(name, {"step": step})
    if wait != "pending":
        writer.flush()
    if wait and step == 0:
        print("recorded", flush=True)
        sys.stdin.readline()
    writer.finish({})
print(*writer.failures)
"""


def fresh() -> dict[str, str]:
    """Return an environment as a new launch has it."""
    return {key: value for key, value in os.environ.items() if key != RUN_STARTED}


def run(path: Path, name: str, rank: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", RUN, str(path), name, rank, ""]
    done = subprocess.run(command, env=fresh(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done


def names(path: Path) -> set[str]:
    return {name for file in path.glob("step*/*/dump.json") for name in read_dump(file).data}


TICK = 0.05
"""The start of a process is known to 10 ms, and what starts before the first step is of one run."""
Live = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    """Return a function that starts a run, which records something and waits for a line before its first step ends."""
    started: list[subprocess.Popen[str]] = []

    def start(rank: str = "", wait: str = "flushed") -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", RUN, str(tmp_path), f"first{rank}", rank, wait],
            env=fresh(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def has_recorded(*processes: subprocess.Popen[str]) -> None:
    """Wait until they have, and a moment longer."""
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "recorded\n"
    time.sleep(TICK)


@pytest.mark.parametrize("wait", ["flushed", "pending"])
@pytest.mark.parametrize("rank", ["", "0"], ids=["without a rank", "rank 0"])
def test_a_run_takes_the_path_of_a_live_one_which_goes_on_beside_it(
    tmp_path: Path, live: Live, rank: str, wait: str
) -> None:
    """As when a notebook is still open: the new run records as usual, and the old one loses nothing."""
    first = live(rank, wait)
    has_recorded(first)
    second = run(tmp_path, "second", rank)
    said = [line for line in second.stderr.splitlines() if line.startswith("msprobe")]
    if wait == "flushed":
        assert len(said) == 1
        assert f"still alive (process {first.pid})" in said[0]
    else:  # there was no folder yet
        assert not said
    _, err = first.communicate("go on\n")
    assert first.returncode == 0
    (aside,) = (tmp_path / "earlier").iterdir()
    (complaint,) = [line for line in err.splitlines() if line.startswith("msprobe")]
    assert "a dump_path of its own" in complaint
    assert str(aside) in complaint
    for place, name in ((tmp_path, "second"), (aside, f"first{rank}")):
        assert names(place) == {name}
        ranks = sorted(place.glob("step*/*"))
        assert [folder.parent.name for folder in ranks] == ["step0", "step1"]
        assert all(read_dump(folder).complete for folder in ranks)
        assert not any(read_dump(folder).coverage["failures"] for folder in ranks)


def test_all_ranks_of_a_run_that_lost_its_path_go_on_in_one_place(tmp_path: Path, live: Live) -> None:
    first = [live("0"), live("1", "pending"), live("2")]
    has_recorded(*first)
    run(tmp_path, "second", "0")
    run(tmp_path, "third", "0")
    for process in first:
        process.communicate("go on\n")
    first_place, second_place = sorted((tmp_path / "earlier").iterdir())
    assert names(tmp_path) == {"third"}
    assert names(second_place) == {"second"}
    assert names(first_place) == {"first0", "first1", "first2"}
    assert len(list(first_place.glob("step*/rank*"))) == 6


def test_a_step_is_discarded_where_it_is_and_not_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RUN_STARTED, raising=False)
    layout = RunLayout(tmp_path, rank=0)
    writer = layout.open_step(
        0,
        task="statistics",
        level="L1",
        framework="pytorch",
        extra_info=False,
        tensors=False,
        render_stack=lambda key: [],
    )
    writer.add("first", {})
    writer.finish({})
    time.sleep(TICK)
    run(tmp_path, "second", "0")
    layout.discard(writer)
    assert names(tmp_path) == {"second"}
    assert not list(tmp_path.glob("earlier/*/step*"))


def test_a_killed_run_keeps_nobody_out(tmp_path: Path, live: Live) -> None:
    first = live("0")
    has_recorded(first)
    first.kill()
    first.wait()
    second = run(tmp_path, "second")
    assert "still alive" not in second.stderr
    assert names(tmp_path) == {"second"}
    (aside,) = (tmp_path / "earlier").iterdir()
    assert names(aside) == {"first0"}


@pytest.mark.parametrize(
    ("hours", "marked"),
    # Without a mark, a jump of less than an hour looks like the clocks of two machines that differ.
    [(-48.0, True), (0.5, True), (48.0, True), (-48.0, False), (48.0, False)],
)
def test_runs_are_told_apart_after_a_clock_jump(tmp_path: Path, hours: float, marked: bool) -> None:
    """The folders of the first run get the time stamps that a clock set back (or ahead) since then leaves."""
    run(tmp_path, "first", "0")
    stamp = time.time() + hours * 3600
    for path in [*tmp_path.rglob("*"), tmp_path]:
        os.utime(path, (stamp, stamp))
    if not marked:
        (tmp_path / LOCK_FILE).unlink()
    run(tmp_path, "second", "0")
    assert names(tmp_path) == {"second"}
    (aside,) = (tmp_path / "earlier").iterdir()
    assert names(aside) == {"first"}


def test_ranks_of_one_run_stay_together_when_the_clock_jumps_between_them(tmp_path: Path) -> None:
    """The second rank starts with the first and comes to its first step when the folder looks a day old."""
    body = "import sys, pathlib; sys.stdin.readline()\n" + RUN
    command = [sys.executable, "-c", body, str(tmp_path), "rank1", "1", ""]
    late = subprocess.Popen(command, env=fresh(), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    run(tmp_path, "rank0", "0")
    past = time.time() - 86400
    for path in tmp_path.rglob("*"):
        os.utime(path, (past, past))
    late.communicate("go on\n")
    assert late.returncode == 0
    assert names(tmp_path) == {"rank0", "rank1"}
    assert not (tmp_path / "earlier").exists()


@pytest.mark.parametrize("content", [b"", b"\0" * 10_000, b"[" * 4096, b'{"taken":3}', b'{"taken":"1 x","pid":[]}'])
def test_a_damaged_mark_is_no_mark(tmp_path: Path, content: bytes) -> None:
    run(tmp_path, "first", "0")
    (tmp_path / LOCK_FILE).write_bytes(content)
    run(tmp_path, "second", "0")
    assert names(tmp_path) == {"second"}
    assert json.loads((tmp_path / LOCK_FILE).read_bytes())["pid"]


def test_a_pipe_or_link_in_the_place_of_a_mark_harms_nobody(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    dump = tmp_path / "dump"
    dump.mkdir()
    (dump / LOCK_FILE).symlink_to(victim)
    run(dump, "linked")
    (dump / LOCK_FILE).unlink()
    os.mkfifo(dump / LOCK_FILE)
    run(dump, "piped")
    assert names(dump) <= {"linked", "piped"}
    assert victim.read_text() == "precious"


def test_a_link_in_the_place_of_the_folder_for_earlier_runs_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    run(tmp_path / "dump", "first", "0")
    (tmp_path / "dump" / "earlier").symlink_to(victim)
    second = run(tmp_path / "dump", "second", "0")
    assert "symbolic link" in second.stderr
    assert names(tmp_path / "dump") == {"first"}
    assert not list(victim.iterdir())
