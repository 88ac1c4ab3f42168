"""What a module is given or returns on one side only matters if what both sides have differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from written_dumps import call, tensor, write

from msprobe.compare.comparison import Request, compare_dumps
from msprobe.compare.rows import Summary

MODULE = "Module.attention.Attention"


def compare(target: Any, golden: Any, folder: Path, name: str = f"{MODULE}.forward.0", **options: Any) -> Summary:
    paths = [write(folder / side, [(name, record)]) for side, record in (("t", target), ("g", golden))]
    return compare_dumps(Request(paths[0], paths[1], folder / "out", **options)).summary


def attention(mask: Any, out: Any, weights: Any = None) -> dict[str, Any]:
    return {"input_args": [tensor(1)], "input_kwargs": {"mask": mask}, "output": [out, weights]}


def test_mask_of_one_side_is_uncompared_if_the_outputs_agree(tmp_path: Path) -> None:
    golden = attention(tensor(5), tensor(2), tensor(3))
    summary = compare(attention(None, tensor(2)), golden, tmp_path)
    assert (summary.first_divergence, summary.exit_code) == (None, 0)
    assert (summary.records, summary.values["uncompared"]) == ({"pass": 1}, 2)


def test_what_a_call_overwrites_is_uncompared_unless_it_is_another_tensor(tmp_path: Path) -> None:
    name = "Tensor.__setitem__.0.forward"
    golden, other = call(tensor(1), tensor(), out=None), call(tensor(7e9), tensor(), out=None)
    summary = compare(other, golden, tmp_path, name)
    assert (summary.exit_code, summary.values["uncompared"], summary.first_divergence) == (0, 1, None)
    assert compare(call(tensor(1, (6,)), tensor(), out=None), golden, tmp_path / "shape", name).exit_code == 1
    assert compare(other, golden, tmp_path / "add", "Tensor.__iadd__.0.forward").exit_code == 1


def test_mask_of_booleans_is_uncompared_if_the_outputs_agree(tmp_path: Path) -> None:
    golden, mask = attention(tensor(5), tensor(2)), tensor(1, dtype="torch.bool")
    assert compare(attention(mask, tensor(2)), golden, tmp_path).records == {"pass": 1}


def test_missing_mask_is_named_if_the_outputs_differ(tmp_path: Path) -> None:
    first = compare(attention(None, tensor(7)), attention(tensor(5), tensor(2)), tmp_path).first_divergence
    assert first is not None
    assert first.leaf == "input.mask"


def test_missing_mask_is_an_error_where_runs_should_be_equal(tmp_path: Path) -> None:
    golden = attention(tensor(5), tensor(2))
    assert compare(attention(None, tensor(2)), golden, tmp_path, exact=True).exit_code == 1


def test_gradient_that_is_not_handed_on_is_an_error(tmp_path: Path) -> None:
    golden = {"input": [tensor(1)], "output": [tensor(2), tensor(3)]}
    target = {"input": [tensor(1)], "output": [tensor(2), None]}
    first = compare(target, golden, tmp_path, f"{MODULE}.backward.0").first_divergence
    assert first is not None
    assert first.leaf == "output.1"


def test_gradient_of_a_result_that_one_side_does_not_have_is_uncompared(tmp_path: Path) -> None:
    golden = {"input": [tensor(1), tensor(4)], "output": [tensor(2)]}
    target = {"input": [tensor(1)], "output": [tensor(2)]}
    assert compare(target, golden, tmp_path, f"{MODULE}.backward.0").first_divergence is None
