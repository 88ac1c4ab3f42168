"""Ranks in other processes and on a Dask cluster give what one process gives; pages and workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from written_dumps import chain, write

from msprobe.compare.comparison import Request, compare_dumps
from msprobe.compare.jobs import CompareError

APIS = ("Torch.relu", "Functional.linear", "Functional.gelu")


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    for rank in range(3):
        write(tmp_path / "g", chain(*APIS), rank=f"rank{rank}")
        write(tmp_path / "t", chain(*APIS, scales={1: 2.0} if rank == 1 else None), rank=f"rank{rank}")
    return tmp_path / "t", tmp_path / "g"


def results(out: Path) -> tuple[bytes, dict]:
    return (out / "compare_result.csv").read_bytes(), json.loads((out / "summary.json").read_text())


def test_local_processes_give_the_same_result(runs: tuple[Path, Path], tmp_path: Path) -> None:
    seen: list[int] = []
    compare_dumps(Request(*runs, tmp_path / "one", processes=1))
    compare_dumps(Request(*runs, tmp_path / "two", processes=2), lambda done, total, result: seen.append(done))
    assert results(tmp_path / "one") == results(tmp_path / "two")
    assert seen == [0, 1, 2, 3]
    assert results(tmp_path / "two")[1]["rank_only"] == ["rank1"]
    assert sorted(entry.name for entry in (tmp_path / "two").iterdir()) == ["compare_result.csv", "summary.json"]


def test_dask_cluster_gives_the_same_result(runs: tuple[Path, Path], tmp_path: Path) -> None:
    from distributed import LocalCluster

    compare_dumps(Request(*runs, tmp_path / "one", processes=1))
    with LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, host="127.0.0.1", protocol="tcp://", dashboard_address=None
    ) as cluster:
        compare_dumps(Request(*runs, tmp_path / "dask", scheduler=cluster.scheduler_address))
    assert results(tmp_path / "one") == results(tmp_path / "dask")


def test_scheduler_that_is_not_there_is_named(
    runs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("msprobe.compare.jobs._PATIENCE", "1s")
    with pytest.raises(CompareError, match=r"--scheduler tcp://127\.0\.0\.1:9"):
        compare_dumps(Request(*runs, tmp_path / "o", scheduler="tcp://127.0.0.1:9"))
