"""``msprobe parse``: tensor files, folders of them, dumps, and two tensors element by element."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from report_cases import INF, NAN, api, msprobe, tensor, write_dump

from msprobe.report.dump_summary import summarise_dump
from msprobe.report.element_differences import element_differences
from msprobe.report.parse_view import histogram_lines
from msprobe.report.tensor_summary import Largest, summarise
from msprobe.store.tensor_reader import ReadTensor, read_tensor


def test_a_tensor_file_is_described_by_statistics_histogram_and_elements(tmp_path):
    torch.save(torch.arange(-3.0, 3.0).view(2, 3), tmp_path / "a.pt")
    done = msprobe("parse", tmp_path / "a.pt", "--top", 2)
    assert done.returncode == 0, done.stderr
    assert "shape [2, 3]   dtype float32" in done.stdout
    assert "Max 2.0   Min -3.0" in done.stdout
    assert "█" in done.stdout
    assert "[0, 0]" in done.stdout
    assert "-3" in done.stdout


def test_elements_that_are_not_finite_stand_out_first_then_the_largest():
    array = np.array([1.0, -7.0, np.nan, 2.0, -np.inf, 5.0])
    found = summarise(array, "float64", 4).worst
    assert [element.index for element in found] == [(2,), (4,), (1,), (5,)]


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool, torch.complex64]
)
def test_every_dtype_can_be_looked_at(tmp_path, dtype):
    value = torch.tensor([[0, 1], [1, 1]]).to(dtype)
    torch.save(value, tmp_path / "a.pt")
    tensor_ = read_tensor(tmp_path / "a.pt")
    found = summarise(tensor_.array, tensor_.dtype, 1)
    assert found.dtype == str(dtype).removeprefix("torch.")
    assert sum(found.histogram.counts) == 4
    assert found.statistics.zero == 1


@pytest.mark.parametrize(
    "array", [np.empty((0, 3)), np.array(2.5), np.full(4, np.nan), np.full(3, 1e308), np.array([-1.7e308, 1.7e308])]
)
def test_empty_scalar_constant_and_extreme_tensors(array):
    found = summarise(array, "float64", 3)
    finite = int(np.isfinite(array).sum())
    assert (sum(found.histogram.counts) if found.histogram else 0) == finite
    if found.histogram:
        assert len(histogram_lines(found.histogram)) == len(found.histogram.counts) + 1


def test_the_largest_of_a_long_sequence_are_those_of_a_sort():
    numbers = np.random.default_rng(0).integers(0, 50, 10_000).astype(float)
    largest = Largest(20)
    for start in range(0, numbers.size, 999):
        largest.add(start, numbers[start : start + 999])
    assert largest.places == np.argsort(-numbers, kind="stable")[:20].tolist()


def test_two_tensors_are_compared_element_by_element_with_ulp(tmp_path):
    value = torch.ones(2, 3)
    other = value.clone()
    other[1, 2] = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0))
    np.save(tmp_path / "a.npy", value.numpy())
    torch.save(other, tmp_path / "b.pt")
    done = msprobe("parse", tmp_path / "a.npy", tmp_path / "b.pt")
    assert done.returncode == 1, done.stderr
    assert "1 of 6 elements differ" in done.stdout
    row = next(line for line in done.stdout.splitlines() if "[1, 2]" in line)
    assert "1.00000012" in row
    assert row.split("│")[-2].strip() == "1"
    assert msprobe("parse", tmp_path / "b.pt", tmp_path / "b.pt").returncode == 0


def test_nan_on_both_sides_is_equal_and_opposite_infinities_are_not():
    first = ReadTensor(np.array([np.nan, np.inf, np.inf, 1.0]), "float64")
    second = ReadTensor(np.array([np.nan, np.inf, -np.inf, 1.5]), "float64")
    found = element_differences(first, second, 5)
    assert found.different == 2
    assert [element.index for element in found.worst] == [(2,), (3,)]
    assert found.worst[0].difference is None
    assert found.worst[1].difference == 0.5


def test_tensors_of_different_shapes_are_bad_input(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((2, 3)))
    np.save(tmp_path / "b.npy", np.zeros((3, 2)))
    done = msprobe("parse", tmp_path / "a.npy", tmp_path / "b.npy")
    assert done.returncode == 2
    assert "[2, 3]" in done.stderr
    assert "[3, 2]" in done.stderr


def test_a_dump_is_counted_and_its_outstanding_values_named(tmp_path):
    data = {
        "Torch.exp.0.forward": api([tensor()], [tensor(9.0, data_name="x.pt")]),
        "Torch.log.0.forward": api([tensor(2.0)], [NAN]),
        "Torch.log.0.backward": {"input": [tensor()], "output": [INF]},
        "Torch.x.0.forward": api([tensor(None, None, reason="meta tensor")], []),
    }
    folder = write_dump(tmp_path / "step0" / "rank0", data)
    found = summarise_dump(folder, 3)
    assert dict(found.records) == {"forward": 3, "backward": 1}
    assert (found.nonfinite, found.files, found.unmeasured["meta tensor"]) == (2, 1, 1)
    assert [f"{value.record}.{value.place}" for value in found.worst] == [
        "Torch.log.0.forward.output.0",
        "Torch.log.0.backward.output.0",
        "Torch.exp.0.forward.output.0",
    ]
    done = msprobe("parse", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "4 records: 3 forward, 1 backward" in done.stdout


def test_the_tensors_that_nan_check_keeps_are_shown(tmp_path):
    folder = tmp_path / "extra-info" / "step0" / "rank0"
    folder.mkdir(parents=True)
    torch.save(torch.tensor([1.0, float("nan")]), folder / "Torch.log.0.forward.output.0.pt")
    torch.save(torch.tensor([1.0, -1.0]), folder / "Torch.log.0.forward.input.0.pt")
    done = msprobe("parse", tmp_path / "extra-info")
    assert done.returncode == 0, done.stderr
    assert "2 tensors" in done.stdout
    assert "[1] = nan" in done.stdout


def test_what_is_neither_tensor_nor_dump_is_bad_input(tmp_path):
    (tmp_path / "a.pt").write_bytes(b"no tensor")
    for path in (tmp_path / "a.pt", tmp_path / "none.npy", tmp_path / "empty"):
        done = msprobe("parse", path)
        assert done.returncode == 2, path
        assert str(path) in done.stderr
