"""Which folder of an earlier dump belongs to a folder of this run, and what is said if none does."""

from __future__ import annotations

from pathlib import Path

import pytest

from msprobe.store.bench import BenchError, find_bench


def layout(root: Path, *folders: str) -> Path:
    for folder in folders:
        (root / folder).mkdir(parents=True)
    return root


@pytest.mark.parametrize(
    ("folders", "step", "rank", "found"),
    [
        (["step0/rank0", "step0/rank1"], "step0", "rank1", "step0/rank1"),
        (["step0/proc11"], "step0", "proc22", "step0/proc11"),
        (["step0/proc11"], "step0", "rank0", "step0/proc11"),
        (["step0/rank0"], "step0", "proc22", "step0/rank0"),
        (["step0/rank0", "step0/notes"], "step0", "rank0", "step0/rank0"),
    ],
)
def test_the_folder_of_the_same_rank_or_the_only_one(
    tmp_path: Path, folders: list[str], step: str, rank: str, found: str
) -> None:
    assert find_bench(layout(tmp_path, *folders), step, rank) == tmp_path / found


@pytest.mark.parametrize(
    ("folders", "step", "rank", "said"),
    [
        (["step1/rank0", "step10/rank0"], "step0", "rank0", "no step0, only step1, step10; record the same steps"),
        (["step0/rank0"], "step0", "rank1", "no rank1, and there is rank0; run with the same ranks"),
        (["step0/proc1", "step0/proc2"], "step0", "rank0", "no rank0, and there is proc1, proc2"),
        (["step0/rank0", "step0/rank1"], "step0", "proc5", "this process has no rank, and there is rank0, rank1"),
        (["step0"], "step0", "rank0", "no rank0, and there is no rank"),
    ],
)
def test_another_layout_is_described(tmp_path: Path, folders: list[str], step: str, rank: str, said: str) -> None:
    with pytest.raises(BenchError, match=said):
        find_bench(layout(tmp_path, *folders), step, rank)
