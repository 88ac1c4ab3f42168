"""Values of several ranks put together: exactly, or with a word on what cannot be known."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner
from written_dumps import call, write

from msprobe.cli import app
from msprobe.compare.comparison import Request, compare_dumps
from msprobe.compare.gather_layout import LayoutError, RankValue, gather_value, placement_text
from msprobe.compare.gather_pieces import Piece

Placement = dict[str, dict[str, Any]]


def shard(dim: int) -> Placement:
    return {"Shard": {"dim": dim}}


def entry(array: np.ndarray, **more: Any) -> dict[str, Any]:
    numbers = array.astype(np.float64)
    empty = not array.size
    return {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": list(array.shape),
        "Max": None if empty else float(numbers.max()),
        "Min": None if empty else float(numbers.min()),
        "Mean": None if empty else float(numbers.mean()),
        "Norm": None if empty else float(np.linalg.norm(numbers)),
        "requires_grad": False,
        **more,
    }


def gather(arrays: list[np.ndarray], **layout: Any) -> tuple[Piece, np.ndarray]:
    rule, backward, wanted = (layout.pop(key, None) for key in ("rule", "backward", "wanted"))
    values = [
        RankValue(rank, f"rank{rank}", entry(array, data_name=str(rank), **layout)) for rank, array in enumerate(arrays)
    ]
    piece = gather_value(values, rule or "replicated", backward=bool(backward), wanted=wanted)
    elements = piece.elements(lambda name: arrays[int(name)])
    assert elements is not None
    return piece, elements


def check_whole(piece: Piece, whole: np.ndarray) -> None:
    found, expected = piece.entry, entry(whole)
    assert list(found.shape or ()) == expected["shape"]
    ours = [found.largest, found.smallest, found.mean, found.norm]
    assert ours == pytest.approx([expected[key] for key in ("Max", "Min", "Mean", "Norm")])


@given(st.lists(st.integers(0, 5), min_size=2, max_size=5).filter(any), st.integers(0, 1))
def test_uneven_and_empty_shards_have_the_statistics_of_the_whole(sizes: list[int], dim: int) -> None:
    whole = np.random.default_rng(0).normal(size=(sum(sizes), 3) if dim == 0 else (3, sum(sizes)))
    arrays = np.split(whole, np.cumsum(sizes)[:-1], axis=dim)
    piece, elements = gather(arrays, device_mesh=list(range(len(sizes))), placements=[shard(dim)])
    check_whole(piece, whole)
    assert np.array_equal(elements, whole)
    for part, array in zip(piece.parts, arrays, strict=True):
        assert np.array_equal(whole[part.box()], array)


def test_a_tensor_that_is_sharded_twice_is_put_together_in_the_order_of_the_mesh() -> None:
    whole = np.arange(24.0).reshape(8, 3)
    layout = {"device_mesh": [[0, 1], [2, 3]]}
    piece, elements = gather(np.split(whole, 4), **layout, placements=[shard(0), shard(0)])
    assert np.array_equal(elements, whole)
    check_whole(piece, whole)
    # FSDP2 over tensor parallelism: split by the second mesh dimension first.
    first, second = np.split(whole, 2)
    arrays = [np.split(first, 2)[0], np.split(second, 2)[0], np.split(first, 2)[1], np.split(second, 2)[1]]
    strided = {"StridedShard": {"dim": 0, "split_factor": 2}}
    piece, elements = gather(arrays, **layout, placements=[strided, shard(0)])
    assert np.array_equal(elements, whole)


def test_replicas_of_shards_are_checked_and_the_rank_that_parts_is_named() -> None:
    whole = np.arange(8.0).reshape(4, 2)
    arrays = [part.copy() for _ in range(3) for part in np.split(whole, 2)]
    arrays[3][0, 0] = 99.0
    layout = {"device_mesh": [[0, 1], [2, 3], [4, 5]], "placements": [{"Replicate": {}}, shard(0)]}
    piece, elements = gather(arrays, **layout)
    assert np.array_equal(elements, whole)
    assert "rank3" in [part.rank for part in piece.apart]
    assert not {"rank0", "rank1", "rank4", "rank5"} & {part.rank for part in piece.apart if part.shard == "replica"}


def test_partial_sums_are_added_and_only_their_mean_is_known_without_elements() -> None:
    arrays = [np.arange(6.0).reshape(2, 3), np.ones((2, 3))]
    layout = {"device_mesh": [0, 1], "placements": [{"Partial": {"reduce_op": "sum"}}]}
    piece, elements = gather(arrays, **layout)
    assert np.array_equal(elements, arrays[0] + arrays[1])
    assert piece.entry.mean == pytest.approx(elements.mean())
    assert (piece.entry.largest, piece.entry.smallest, piece.entry.norm) == (None, None, None)
    assert "only the mean" in piece.entry.reason


def test_parts_of_the_batch_are_joined_and_their_gradients_divided_by_the_number_of_ranks() -> None:
    arrays = [np.arange(6.0).reshape(2, 3), np.ones((2, 3))]
    whole = np.concatenate(arrays)
    piece, elements = gather(arrays, rule="batch", wanted=(4, 3))
    assert np.array_equal(elements, whole)
    check_whole(piece, whole)
    piece, elements = gather(arrays, rule="batch", backward=True, wanted=(4, 3))
    assert np.array_equal(elements, whole / 2)
    check_whole(piece, whole / 2)
    piece, elements = gather(arrays, rule="batch", backward=True, wanted=(2, 3))  # the gradient of a parameter
    assert np.array_equal(elements, np.mean(arrays, axis=0))


def test_equal_values_on_all_ranks_are_parts_of_the_batch_where_the_other_side_is_as_large() -> None:
    same = np.ones((2, 3))
    assert gather([same, same], rule="batch", wanted=(4, 3))[0].entry.shape == (4, 3)
    assert gather([same, same], rule="batch", wanted=(2, 3))[0].entry.shape == (2, 3)


def test_a_shard_of_a_rank_that_is_not_there_is_said() -> None:
    with pytest.raises(LayoutError, match="no value of rank2"):
        gather([np.ones(2), np.ones(2)], device_mesh=[0, 1, 2], placements=[shard(0)])


def test_the_place_of_a_shard_is_said_for_every_mesh_dimension() -> None:
    raw = {"device_mesh": [[0, 1], [2, 3]], "placements": [{"Replicate": {}}, shard(1)]}
    assert placement_text(raw, 2) == "Replicate 2 of 2, Shard(dim=1) 1 of 2"


def two_ranks(folder: Path, second: float = 1.0) -> Path:
    for rank, factor in ((0, 1.0), (1, second)):
        local = np.full((2, 2), 1.0 + rank) * factor
        placed = entry(local, device_mesh=[0, 1], placements=[shard(0)])
        collective = call(entry(local), out=entry(local))
        records = [("Torch.tanh.0.forward", call(placed, out=placed)), ("Distributed.all_reduce.0.forward", collective)]
        write(folder, records, rank=f"rank{rank}")
    return folder


def test_table_and_summary_say_which_ranks_were_put_together_and_where_a_difference_is(tmp_path: Path) -> None:
    whole = np.repeat([1.0, 2.0], 4).reshape(4, 2)
    golden = write(tmp_path / "g", [("Torch.tanh.0.forward", call(entry(whole), out=entry(whole)))])
    fine = compare_dumps(Request(two_ranks(tmp_path / "fine"), golden, tmp_path / "o1", gather="replicated")).summary
    assert fine.exit_code == 0
    assert any("2 records of communication" in note for note in fine.pairs[0].notes)
    with (tmp_path / "o1/compare_result.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert {row["Rank"] for row in rows} == {"rank0+rank1"}
    assert all("Shard(dim=0) of rank0, rank1" in row["Err_message"] for row in rows)
    compare_dumps(Request(two_ranks(tmp_path / "bad", 3.0), golden, tmp_path / "o2", gather="replicated"))
    first = json.loads((tmp_path / "o2/summary.json").read_text("utf-8"))["first_divergence"]
    assert first["decision"]["parts"] == [{"rank": "rank1", "shard": "Shard(dim=0) 2 of 2"}]


def test_command_names_the_shard_and_proposes_no_file_of_a_single_rank(tmp_path: Path) -> None:
    whole = np.repeat([1.0, 2.0], 4).reshape(4, 2)
    golden = write(tmp_path / "g", [("Torch.tanh.0.forward", call(entry(whole), out=entry(whole)))])
    target = two_ranks(tmp_path / "t", 3.0)
    arguments = ["-tp", str(target), "-gp", str(golden), "-o", str(tmp_path / "o"), "--gather", "replicated"]
    result = CliRunner().invoke(app, ["compare", *arguments])
    assert result.exit_code == 1, result.output
    assert "(only rank1)" in result.output
    assert "rank1 (Shard(dim=0) 2 of 2)" in result.output
    assert "msprobe parse" not in result.output


def test_sizes_of_the_ranks_own_part_are_no_difference(tmp_path: Path) -> None:
    def view(size: int) -> list[tuple[str, Any]]:
        array = np.ones((size, 2))
        return [("Tensor.view.0.forward", call(entry(array), {"type": "int", "value": size}, out=entry(array)))]

    for rank in range(2):
        write(tmp_path / "t", view(2), rank=f"rank{rank}")
    golden = write(tmp_path / "g", view(4))
    assert compare_dumps(Request(tmp_path / "t", golden, tmp_path / "o", gather="batch")).summary.exit_code == 0
    other = write(tmp_path / "g5", view(5))
    assert compare_dumps(Request(tmp_path / "t", other, tmp_path / "o5", gather="batch")).summary.exit_code == 1


def test_an_unknown_rule_is_refused_with_what_is_allowed(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["compare", "-tp", "a", "-gp", "b", "-o", str(tmp_path), "--gather", "x"])
    assert result.exit_code == 2
    assert "batch" in result.output
