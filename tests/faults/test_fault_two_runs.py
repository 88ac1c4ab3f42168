"""Runs that share a dump_path, one after the other or at the same time, whatever the clock says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from msprobe.store import read_dump
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
                              render_stack=lambda key: [])
    writer.add(name, {"step": step})
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


@pytest.fixture(params=["", "0"], ids=["without a rank", "rank 0"])
def live(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a run that has recorded something and waits for a line before it ends its first step."""
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path), "first", request.param, "wait"],
        env=fresh(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "recorded\n"
    time.sleep(0.05)  # the start of a process is known to 10 ms, and what starts before the first step is of one run
    yield process
    process.kill()
    process.communicate()


def test_a_run_beside_a_live_one_records_nothing_and_says_why(tmp_path: Path, live: subprocess.Popen[str]) -> None:
    second = run(tmp_path, "second")
    (said,) = [line for line in second.stderr.splitlines() if line.startswith("msprobe")]
    assert f"process {live.pid}" in said
    assert str(tmp_path) in said
    assert "dump_path of its own" in said
    assert "has not ended" in second.stdout  # in the reasons that go to coverage.json
    live.communicate("go on\n")
    assert live.returncode == 0
    assert names(tmp_path) == {"first"}
    assert all(read_dump(rank).complete for rank in tmp_path.glob("step*/*"))
    assert not (tmp_path / "earlier").exists()


def test_a_killed_run_keeps_nobody_out(tmp_path: Path, live: subprocess.Popen[str]) -> None:
    live.kill()
    live.wait()
    run(tmp_path, "second")
    assert names(tmp_path) == {"second"}
    (aside,) = (tmp_path / "earlier").iterdir()
    assert names(aside) == {"first"}


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
    for name in ("lock", "live"):
        dump = tmp_path / name
        dump.mkdir()
        (dump / f".msprobe.{name}").symlink_to(victim)
        run(dump, "linked")
        (dump / f".msprobe.{name}").unlink()
        os.mkfifo(dump / f".msprobe.{name}")
        run(dump, "piped")
        assert names(dump) <= {"linked", "piped"}
    assert victim.read_text() == "precious"
