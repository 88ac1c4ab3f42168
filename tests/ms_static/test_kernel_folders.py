"""What MindSpore leaves on disk is read without MindSpore: file names, statistic.csv, every folder layout."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from msprobe.cli import main
from msprobe.ms_static.kernel_folders import KernelDumpError, convert_kernel_dump
from msprobe.store import read_dump
from msprobe.store.kernel_files import HEAD_COLUMNS, parse_kernel_file

MATMUL = "Default_fc-Dense_MatMul-op0"


def kernel_file(folder, op_type, name, timestamp, side, slot, array=None, dtype="Float32"):
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{op_type}.{name}.0.0.{timestamp}.{side}.{slot}.DefaultFormat.{dtype}.npy"
    np.save(file, np.float32([1, 2]) if array is None else array)
    return file


def statistic_file(folder, columns, *rows):
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "statistic.csv").open("w", newline="") as lines:
        table = csv.writer(lines)
        table.writerow([*HEAD_COLUMNS, *columns])
        table.writerows(rows)


def converted(source, tmp_path, step=0, rank=0):
    convert_kernel_dump(source, tmp_path / "out")
    return read_dump(tmp_path / "out" / f"step{step}" / f"rank{rank}")


def test_a_file_name_is_taken_apart_from_its_end():
    found = parse_kernel_file(Path("MatMul.a.b_c-op1.3.7.1796174716528125.input.2.DefaultFormat.BFloat16.npy"))
    assert (found.op_type, found.op_name, found.task, found.stream) == ("MatMul", "a.b_c-op1", "3", "7")
    assert (found.timestamp, found.side, found.slot, found.dtype) == (1796174716528125, "input", 2, "BFloat16")
    for other in ("statistic.csv", "MatMul.json", "a.b.c.npy", "MatMul.x.0.0.now.input.0.DefaultFormat.Float32.npy"):
        assert parse_kernel_file(Path(other)) is None


def test_launches_are_told_apart_by_slots_that_come_again_even_where_kernels_alternate(tmp_path):
    folder = tmp_path / "rank_0/Net/0/0"
    for time, name, side in [(1, "a", "input"), (2, "b", "input"), (3, "a", "output"), (4, "b", "output")]:
        kernel_file(folder, "Add", name, time, side, 0)
        kernel_file(folder, "Add", name, time + 10, side, 0)
    assert list(converted(tmp_path, tmp_path).data) == [
        "Kernel.a.Add.0.forward",
        "Kernel.b.Add.0.forward",
        "Kernel.a.Add.1.forward",
        "Kernel.b.Add.1.forward",
    ]


def test_full_scopes_come_from_the_execution_order_and_gradients_are_backward(tmp_path):
    order = tmp_path / "rank_3/execution_order"
    order.mkdir(parents=True)
    (order / "ms_execution_order_graph_0.csv").write_text(
        "NodeExecutionOrder-FullNameWithScope\nDefault/fc-Dense/MatMul-op0\nGradients/Default/fc-Dense/Mul-op1\n"
    )
    kernel_file(tmp_path / "rank_3/Net/0/5", "MatMul", MATMUL, 1, "input", 1)
    kernel_file(tmp_path / "rank_3/Net/1/5", "Mul", "Gradients_Default_fc-Dense_Mul-op1", 2, "output", 0)
    dump = converted(tmp_path, tmp_path, 5, 3)
    assert list(dump.data) == [
        "Kernel.Default/fc-Dense/MatMul-op0.MatMul.0.forward",
        "Kernel.Gradients/Default/fc-Dense/Mul-op1.Mul.0.backward",
    ]
    forward, backward = dump.data.values()
    assert forward["input_args"][0] is None  # slot 0 was not dumped
    assert (forward["input_args"][1]["Max"], forward["output"]) == (2.0, [])
    assert set(backward) == {"input", "output"}


def test_statistics_become_entries(tmp_path):
    columns = ["Max Value", "Min Value", "Avg Value", "L2Norm Value", "NaN Count", "Negative Inf Count", "MD5"]
    head = ["MatMul", MATMUL, "0", "0", "17", "output", "0", "24", "Float32", "(2,3)"]
    statistic_file(
        tmp_path / "rank_0/Net/0/0",
        columns,
        [*head, "inf", "-1.5", "nan", "3", "1", "2", "9E107D9D372BB6826BD81D3542A419D6"],
        ["MatMul", MATMUL, "0"],  # cut off by a kill
    )
    record = converted(tmp_path, tmp_path).data[f"Kernel.{MATMUL}.MatMul.0.forward"]
    entry = record["output"][0]
    assert (entry["dtype"], entry["shape"], entry["Max"], entry["Min"]) == ("Float32", [2, 3], float("inf"), -1.5)
    assert np.isnan(entry["Mean"])
    assert (entry["Norm"], entry["NaN"], entry["Inf"]) == (3, 1, 2)
    assert entry["md5"] == "9e107d9d372bb6826bd81d3542a419d6"


def test_a_statistic_that_was_not_asked_for_is_null_with_a_reason(tmp_path):
    row = ["Add", "a", "0", "0", "1", "input", "0", "8", "Int32", "2;3", "7", "12"]
    statistic_file(tmp_path / "rank_0/Net/0/0", ["Max Value", "Count"], row)
    (entry,) = converted(tmp_path, tmp_path).data["Kernel.a.Add.0.forward"]["input_args"]
    assert (entry["Max"], entry["Min"], entry["count"], entry["shape"]) == (7, None, 12, [2, 3])
    assert "summary_mode" in entry["reason"]


def test_the_layouts_of_whole_graphs_name_their_step_too(tmp_path):
    kernel_file(tmp_path / "document/4/20260101/0/net/1/0", "Add", "a", 1, "input", 0)
    assert list(converted(tmp_path / "document", tmp_path, 4).data) == ["Kernel.a.Add.0.forward"]
    kernel_file(tmp_path / "other/rank_1/20260101/step_7/20260101/1/net/1/3", "Add", "a", 1, "input", 0)
    assert list(converted(tmp_path / "other", tmp_path, 7, 1).data) == ["Kernel.a.Add.0.forward"]


def test_names_that_were_too_long_are_looked_up(tmp_path):
    folder = tmp_path / "rank_0/Net/0/0"
    file = kernel_file(folder, "Add", "long", 1, "input", 0)
    (folder / "mapping.csv").write_text(f"123456.npy,{file.name}\n")
    file.rename(folder / "123456.npy")
    dump = converted(tmp_path, tmp_path)
    assert list(dump.data) == ["Kernel.long.Add.0.forward"]
    assert np.load(dump.tensor_folder / dump.data["Kernel.long.Add.0.forward"]["input_args"][0]["data_name"]).size == 2


def test_files_that_cannot_be_read_are_null_and_counted(tmp_path):
    folder = tmp_path / "rank_0/Net/0/0"
    kernel_file(folder, "Add", "a", 1, "input", 0).write_bytes(b"\x93NUMPY broken")
    kernel_file(folder, "Add", "a", 2, "output", 0).rename(folder / "Add.a.0.0.2.output.0.NC1HWC0.Float16.bin")
    dump = converted(tmp_path, tmp_path)
    record = dump.data["Kernel.a.Add.0.forward"]
    assert "ValueError" in record["input_args"][0]["reason"]
    assert "msaccucmp.py" in record["output"][0]["reason"]
    assert sum(dump.coverage["null_statistics"].values()) == 2


def test_a_foreign_csv_and_an_empty_folder_are_refused_with_what_is_there(tmp_path):
    folder = tmp_path / "rank_0/Net/0/0"
    folder.mkdir(parents=True)
    with pytest.raises(KernelDumpError, match="but rank_0"):
        convert_kernel_dump(tmp_path, tmp_path / "out")
    (folder / "statistic.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="no statistics of MindSpore"):
        convert_kernel_dump(tmp_path, tmp_path / "out")


def test_the_command_prints_what_it_wrote(tmp_path, capsys):
    kernel_file(tmp_path / "dump/rank_0/Net/0/0", "Add", "a", 1, "input", 0)
    with pytest.raises(SystemExit) as caught:
        main(["kernel-records", str(tmp_path / "dump"), "-o", str(tmp_path / "out")])
    assert caught.value.code in (0, None)
    assert capsys.readouterr().out == f"{tmp_path / 'out/step0/rank0'}: 1 kernels\n"
    assert json.loads((tmp_path / "out/step0/rank0/dump.json").read_bytes())["framework"] == "mindspore"
    with pytest.raises(SystemExit) as caught:
        main(["kernel-records", str(tmp_path / "missing"), "-o", str(tmp_path / "out")])
    assert caught.value.code == 2
