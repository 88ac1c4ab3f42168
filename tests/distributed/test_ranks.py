"""Which rank writes where, and that a rank that is left out pays nothing and is not waited for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import rank_programs as programs
import torch
from ranks import records, run_ranks


def folders(folder: Path, step: int = 0) -> list[str]:
    return sorted(entry.name for entry in (folder / f"dump/step{step}").iterdir())


def test_each_rank_has_its_folder(tmp_path: Path) -> None:
    run_ranks(2, programs.one_step, tmp_path, {})
    assert folders(tmp_path) == ["rank0", "rank1"]
    assert list(records(tmp_path, 0)) == list(records(tmp_path, 1))


@pytest.mark.parametrize(("ranks", "expected"), [([1], ["rank1"]), (["0-1"], ["rank0", "rank1"]), ([0, 7], ["rank0"])])
def test_only_wanted_ranks_write_and_collectives_still_meet(
    tmp_path: Path, ranks: list[int | str], expected: list[str]
) -> None:
    plain = run_ranks(2, programs.one_step, tmp_path, {"rank": ["5"], "dump_path": str(tmp_path / "none")})
    (tmp_path / "store").unlink()
    assert run_ranks(2, programs.one_step, tmp_path, {"rank": ranks}) == plain
    assert folders(tmp_path) == expected


def test_a_rank_that_is_left_out_has_no_hook_and_no_mode(tmp_path: Path) -> None:
    idle, recording = run_ranks(2, programs.left_out, tmp_path)
    assert (idle["hooks"], idle["modes"], idle["c10d"]) == (0, 0, True)
    assert recording["hooks"] > 0
    assert (recording["modes"], recording["c10d"]) == (1, False)
    assert folders(tmp_path) == ["rank1"]


def test_rank_id_names_the_folder_and_is_what_rank_selects(tmp_path: Path) -> None:
    run_ranks(2, programs.one_step, tmp_path, {"rank": [11]}, 10)
    assert folders(tmp_path) == ["rank11"]


def test_a_group_that_comes_after_start_renames_the_folder(tmp_path: Path) -> None:
    run_ranks(2, programs.late_group, tmp_path, [], False, grouped=False)
    assert folders(tmp_path) == ["rank0", "rank1"]
    assert list(records(tmp_path, 1)) == ["Torch.tanh.0.forward", "Distributed.all_reduce.0.forward"]


def test_before_the_group_is_there_the_launcher_tells_the_rank(tmp_path: Path) -> None:
    run_ranks(2, programs.late_group, tmp_path, [1], True, grouped=False)
    assert folders(tmp_path) == ["rank1"]


def test_spawned_processes_write_by_rank(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(programs.spawned, args=(str(tmp_path),), nprocs=2)
    assert folders(tmp_path) == ["rank0", "rank1"]


def test_forked_ranks_leave_the_recording_to_their_parent(tmp_path: Path) -> None:
    ((first, second),) = run_ranks(1, programs.fork_two, tmp_path, grouped=False)
    assert (first, second) == (0, 0)
    (only,) = folders(tmp_path)
    assert only.startswith("proc")


def test_torchrun(tmp_path: Path) -> None:
    script, config = tmp_path / "train.py", tmp_path / "config.json"
    script.write_text(programs.TORCHRUN, encoding="utf-8")
    config.write_text(json.dumps({"dump_path": str(tmp_path / "dump"), "level": "L1", "rank": [1]}), encoding="utf-8")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launcher, str(script), str(config)], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert folders(tmp_path) == ["rank1"]
    assert list(records(tmp_path, 1)) == ["Distributed.all_reduce.0.forward"]
