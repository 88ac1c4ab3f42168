"""What `--gather` cannot do, as docs/limitations.md says."""

from __future__ import annotations

from pathlib import Path

import pytest
from written_dumps import call, tensor, write

from msprobe.compare.comparison import Request, compare_dumps
from msprobe.compare.rows import GatherRule, Summary


def compare(target: Path, golden: Path, out: Path, rule: GatherRule) -> Summary:
    return compare_dumps(Request(target, golden, out, gather=rule)).summary


def test_stages_of_a_pipeline_are_taken_for_replicas(tmp_path: Path) -> None:
    name = "Module.0.Linear.forward.0"
    for rank in range(2):
        write(tmp_path / "t", [(name, call(tensor(), out=tensor(1.0 + rank)))], rank=f"rank{rank}")
    golden = write(tmp_path / "g", [(name, call(tensor(), out=tensor()))])
    first = compare(tmp_path / "t", golden, tmp_path / "o", "replicated").first_divergence
    assert first is not None
    assert "the replicas part" in first.explanation


def test_gradients_of_a_loss_that_is_a_sum_differ_by_the_number_of_ranks(tmp_path: Path) -> None:
    def backward(scale: float, rows: int) -> list[tuple[str, dict[str, object]]]:
        entry = tensor(scale, shape=(rows, 3))
        return [("Torch.relu.0.backward", {"input": [entry], "output": []})]

    for rank in range(2):
        write(tmp_path / "t", backward(1.0, 2), rank=f"rank{rank}")
    joined = {**tensor(1.0, shape=(4, 3)), "Norm": 3.0 * 2**0.5}
    golden = write(tmp_path / "g", [("Torch.relu.0.backward", {"input": [joined], "output": []})])
    first = compare(tmp_path / "t", golden, tmp_path / "o", "batch").first_divergence
    assert first is not None
    assert first.decision.number == pytest.approx(0.5)


def test_statistics_name_all_ranks_where_no_part_exceeds_the_whole(tmp_path: Path) -> None:
    for rank, mean in ((0, 0.25), (1, 0.1)):
        placed = {"device_mesh": [0, 1], "placements": [{"Shard": {"dim": 0}}]}
        entry = tensor(1.0, Mean=mean, **placed)  # type: ignore[arg-type]
        write(tmp_path / "t", [("Torch.relu.0.forward", call(out=entry))], rank=f"rank{rank}")
    whole = {**tensor(1.0, shape=(4, 3)), "Norm": 3.0 * 2**0.5}
    golden = write(tmp_path / "g", [("Torch.relu.0.forward", call(out=whole))])
    first = compare(tmp_path / "t", golden, tmp_path / "o", "replicated").first_divergence
    assert first is not None
    assert [part.rank for part in first.decision.parts] == ["rank0", "rank1"]
    assert "statistics do not tell in which part" in first.explanation


def test_of_a_sum_over_ranks_only_the_mean_is_compared_and_this_is_said(tmp_path: Path) -> None:
    for rank in range(2):
        placed = {"device_mesh": [0, 1], "placements": [{"Partial": {"reduce_op": "sum"}}]}
        entry = tensor(1.0, **placed)  # type: ignore[arg-type]
        write(tmp_path / "t", [("Torch.relu.0.forward", call(out=entry))], rank=f"rank{rank}")
    golden = write(tmp_path / "g", [("Torch.relu.0.forward", call(out={**tensor(9.0), "Mean": 0.5}))])
    assert compare(tmp_path / "t", golden, tmp_path / "o", "replicated").exit_code == 0
    assert "only the mean of a sum" in (tmp_path / "o/compare_result.csv").read_text("utf-8")
