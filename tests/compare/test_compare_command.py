"""The command: what it takes, what it refuses, what it writes and how it exits."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner
from written_dumps import call, chain, tensor, write

from msprobe.cli import app
from msprobe.compare import pair, results


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["compare", *map(str, arguments)])
    return result.exit_code, result.output


def compare(target: Path, golden: Path, out: Path, *more: object) -> tuple[int, dict, list[dict[str, str]]]:
    code, text = run("-tp", target, "-gp", golden, "-o", out, *more)
    assert code in {0, 1}, text
    with (out / "compare_result.csv").open(newline="", encoding="utf-8") as file:
        return code, json.loads((out / "summary.json").read_text()), list(csv.DictReader(file))


APIS = ("Torch.relu", "Functional.linear", "Functional.gelu", "Functional.linear")


def test_equal_dumps_exit_0(tmp_path: Path) -> None:
    golden, target = write(tmp_path / "g", chain(*APIS)), write(tmp_path / "t", chain(*APIS))
    code, summary, rows = compare(target, golden, tmp_path / "o")
    assert code == summary["exit_code"] == 0
    assert summary["first_divergence"] is None
    assert [row["Result"] for row in rows] == ["pass"] * 8


def test_difference_exits_1_and_is_explained(tmp_path: Path) -> None:
    golden, target = write(tmp_path / "g", chain(*APIS)), write(tmp_path / "t", chain(*APIS, scales={1: 1.5}))
    code, text = run("-tp", target, "-gp", golden, "-o", tmp_path / "o")
    assert code == 1
    assert "First divergence: Functional.linear.0.forward, output.0" in text
    assert "outputs differ from equal inputs" in text
    assert '"list": ["Functional.linear.0.forward"]' in text
    first = json.loads((tmp_path / "o" / "summary.json").read_text())["first_divergence"]
    assert first["decision"]["threshold"] == 2e-3
    assert first["decision"]["source"] == "default for float32"
    assert [link["target"] for link in first["chain"]] == ["Torch.relu.0.forward", "Functional.linear.0.forward"]


def test_what_merely_inherits_is_grouped(tmp_path: Path) -> None:
    golden, target = write(tmp_path / "g", chain(*APIS)), write(tmp_path / "t", chain(*APIS, scales={0: 1.5}))
    _, summary, _ = compare(target, golden, tmp_path / "o")
    assert summary["pairs"][0]["sources"] == ["Torch.relu.0.forward"]
    groups = {group["module"]: group["records"] for group in summary["pairs"][0]["inherited"]}
    assert groups == {"linear": 2, "gelu": 1}


def test_no_inherited_record_is_lost_where_there_are_too_many_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair, "_GROUPS_KEPT", 1)
    golden, target = write(tmp_path / "g", chain(*APIS)), write(tmp_path / "t", chain(*APIS, scales={0: 1.5}))
    _, summary, _ = compare(target, golden, tmp_path / "o", "--jobs", 1)
    groups = {group["module"]: group["records"] for group in summary["pairs"][0]["inherited"]}
    assert groups == {"linear": 2, "(other modules)": 1}


def test_unmatched_records_are_rows_on_both_sides_and_never_pass(tmp_path: Path) -> None:
    golden = write(tmp_path / "g", chain("Torch.relu", "Torch.exp"))
    target = write(tmp_path / "t", [*chain("Torch.relu"), ("Torch.sum.0.forward", call(tensor(), out=tensor(5, ())))])
    code, summary, rows = compare(target, golden, tmp_path / "o")
    assert code == 1
    assert summary["unmatched"] == {"target": 1, "golden": 1}
    sides = {(row["NPU Name"], row["Bench Name"]) for row in rows if row["Result"] == "unmatched"}
    assert ("N/A", "Torch.exp.0.forward.output.0") in sides
    assert ("Torch.sum.0.forward.output.0", "N/A") in sides


@pytest.mark.parametrize("layout", ["peer", "compact"])
def test_other_layouts_are_read(tmp_path: Path, layout: str) -> None:
    golden = write(tmp_path / "g", chain(*APIS), layout=layout)
    code, _, rows = compare(write(tmp_path / "t", chain(*APIS), layout=layout), golden, tmp_path / "o")
    assert (code, len(rows)) == (0, 8)


def test_signed_zero_dim_norm_of_the_peer_is_the_same_norm(tmp_path: Path) -> None:
    theirs = {**tensor(1, ()), "Max": -2.0, "Min": -2.0, "Mean": -2.0, "Norm": -2.0}
    golden = write(tmp_path / "g", [("Torch.sum.0.forward", call(out=theirs))], layout="peer")
    target = write(tmp_path / "t", [("Torch.sum.0.forward", call(out={**theirs, "Norm": 2.0}))])
    assert compare(target, golden, tmp_path / "o")[0] == 0


def test_steps_and_ranks_are_paired_and_a_missing_one_is_told(tmp_path: Path) -> None:
    for step in (0, 1, 10):
        write(tmp_path / "g", chain(*APIS), step=step, rank="rank0")
        if step != 10:
            write(tmp_path / "t", chain(*APIS), step=step, rank="rank0")
    write(tmp_path / "t", chain(*APIS), step=1, rank="rank1")
    code, summary, _ = compare(tmp_path / "t", tmp_path / "g", tmp_path / "o")
    found = [(p["step"], p["rank"], p["target"] is None, p["golden"] is None) for p in summary["pairs"]]
    assert found == [
        ("step0", "rank0", False, False),
        ("step1", "rank0", False, False),
        ("step1", "rank1", False, True),
        ("step10", "rank0", True, False),
    ]
    assert code == 1


def test_processes_without_a_rank_are_paired_in_order(tmp_path: Path) -> None:
    for run_, first in (("g", 9), ("t", 100)):
        for number in (0, 1):
            write(tmp_path / run_, chain(*APIS, scales={3: 1.0 + number}), rank=f"proc{first + number}")
    code, summary, _ = compare(tmp_path / "t", tmp_path / "g", tmp_path / "o")
    assert (code, len(summary["pairs"])) == (0, 2)


def test_single_step_and_rank_folders_are_paired_whatever_their_names(tmp_path: Path) -> None:
    golden, target = write(tmp_path / "g", chain(*APIS), step=7), write(tmp_path / "t", chain(*APIS), rank="proc5")
    assert compare(target / "step0", golden / "step7", tmp_path / "o")[0] == 0
    assert compare(target / "step0" / "proc5", golden / "step7" / "rank0" / "dump.json", tmp_path / "o")[0] == 0
    assert compare(target, golden / "step7" / "rank0", tmp_path / "o")[0] == 0


@pytest.mark.parametrize("missing", ["nowhere", "empty"])
def test_bad_path_exits_2_with_what_and_what_to_do(tmp_path: Path, missing: str) -> None:
    golden = write(tmp_path / "g", chain(*APIS))
    (tmp_path / "empty").mkdir()
    code, text = run("-tp", tmp_path / missing, "-gp", golden, "-o", tmp_path / "o")
    assert code == 2
    assert str(tmp_path / missing) in text.replace("\n", "")
    assert "give" in text


def test_result_folder_that_is_a_file_exits_2(tmp_path: Path) -> None:
    golden = write(tmp_path / "g", chain(*APIS))
    (tmp_path / "o").write_text("")
    code, text = run("-tp", golden, "-gp", golden, "-o", tmp_path / "o")
    assert (code, "a file is in the way" in text) == (2, True)


def test_no_json_exits_2(tmp_path: Path) -> None:
    golden = write(tmp_path / "g", chain(*APIS))
    bad = write(tmp_path / "t", chain(*APIS))
    (bad / "step0" / "rank0" / "dump.json").write_text("hello")
    code, text = run("-tp", bad, "-gp", golden, "-o", tmp_path / "o")
    assert (code, "no object under the key" in text) == (2, True)


def test_one_unreadable_rank_does_not_take_the_others_with_it(tmp_path: Path) -> None:
    for rank in ("rank0", "rank1"):
        write(tmp_path / "g", chain(*APIS), rank=rank)
        write(tmp_path / "t", chain(*APIS), rank=rank)
    (tmp_path / "t" / "step0" / "rank1" / "dump.json").write_text("")
    code, summary, rows = compare(tmp_path / "t", tmp_path / "g", tmp_path / "o")
    assert (code, len(rows)) == (1, 8)
    assert "no object under the key" in summary["pairs"][1]["notes"][0]


@pytest.mark.parametrize("layout", ["ours", "peer", "compact"])
def test_truncated_file_is_compared_as_far_as_it_goes_and_said_so(tmp_path: Path, layout: str) -> None:
    golden = write(tmp_path / "g", chain(*APIS), layout=layout)
    cut = write(tmp_path / "t", chain(*APIS), layout=layout) / "step0" / "rank0" / "dump.json"
    text = cut.read_bytes()
    cut.write_bytes(text[: text.index(b"Functional.gelu.0.forward") + 60])
    code, summary, _ = compare(tmp_path / "t", golden, tmp_path / "o")
    assert code == 1
    assert summary["records"] == {"pass": 2, "unmatched": 2}
    assert "ends in the middle" in summary["pairs"][0]["notes"][0]


def test_empty_dumps_are_no_crash(tmp_path: Path) -> None:
    empty, full = write(tmp_path / "e", []), write(tmp_path / "f", chain(*APIS))
    code, summary, rows = compare(empty, empty, tmp_path / "o")
    assert (code, rows) == (0, [])
    assert any("holds no records" in note for note in summary["pairs"][0]["notes"])
    code, summary, _ = compare(empty, full, tmp_path / "o")
    assert (code, summary["unmatched"]["golden"]) == (1, 4)
    assert "no record of one side was found" in summary["notes"][0]


def test_names_written_twice_are_compared_in_order(tmp_path: Path) -> None:
    twice = [*chain("Torch.relu"), *chain("Torch.relu", scales={0: 3.0})]
    golden, target = write(tmp_path / "g", twice), write(tmp_path / "t", twice)
    code, _, rows = compare(target, golden, tmp_path / "o")
    assert (code, len(rows)) == (0, 4)
    swapped = write(tmp_path / "s", twice[::-1])
    assert compare(swapped, golden, tmp_path / "o")[0] == 1


def test_shape_and_dtype_mismatch_are_errors_with_both_sides(tmp_path: Path) -> None:
    golden = write(tmp_path / "g", [("Torch.relu.0.forward", call(tensor(), out=tensor(shape=(6,))))])
    target = write(tmp_path / "t", [("Torch.relu.0.forward", call(tensor(), out=tensor(shape=(2, 3))))])
    rows = compare(target, golden, tmp_path / "o")[2]
    assert (rows[1]["Result"], rows[1]["Err_message"]) == ("error", "shape [2, 3], golden [6]")
    half = write(tmp_path / "h", [("Torch.relu.0.forward", call(tensor(), out=tensor(dtype="torch.bfloat16")))])
    rows = compare(half, target, tmp_path / "o")[2]
    assert (rows[1]["Result"], rows[1]["Err_message"]) == ("error", "dtype bfloat16, golden float32")
    assert compare(half, target, tmp_path / "o", "--any-dtype")[0] == 0


def test_values_that_are_null_or_missing_stay_empty_in_the_table(tmp_path: Path) -> None:
    nothing = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "Max": None, "Min": None, "Mean": None}
    nothing |= {"Norm": None, "requires_grad": False, "reason": "a fake tensor has no values"}
    run_ = write(tmp_path / "g", [("Torch.relu.0.forward", call(nothing, None, out=nothing))])
    code, summary, rows = compare(run_, run_, tmp_path / "o")
    assert (code, summary["records"]) == (0, {"uncompared": 1})
    assert (rows[0]["NPU max"], rows[0]["Result"]) == ("", "uncompared")
    assert "a fake tensor has no values" in rows[0]["Err_message"]


def test_summary_is_strict_json_even_with_nan(tmp_path: Path) -> None:
    nan = {**tensor(), "Max": float("nan"), "Min": float("nan"), "Mean": float("nan"), "Norm": float("nan")}
    golden = write(tmp_path / "g", [("Torch.log.0.forward", call(tensor(), out=tensor()))])
    target = write(tmp_path / "t", [("Torch.log.0.forward", call(tensor(), out=nan))])
    code, summary, rows = compare(target, golden, tmp_path / "o")
    assert code == 1
    assert "NaN or infinity begins here" in summary["first_divergence"]["explanation"]
    assert rows[1]["NPU max"] == "nan"
    json.loads((tmp_path / "o" / "summary.json").read_text(), parse_constant=pytest.fail)


def test_text_in_cells_survives_quotes_commas_and_line_breaks(tmp_path: Path) -> None:
    odd = '=cmd|"a",\n\\ null'
    golden = write(tmp_path / "g", [("Torch.einsum.0.forward", call({"type": "str", "value": odd}, out=tensor()))])
    rows = compare(golden, golden, tmp_path / "o")[2]
    assert rows[0]["NPU max"] == odd


@pytest.mark.parametrize("odd", ["\ud800", 2**70, "null", "nan", '"', "\r\n", "文"], ids=ascii)
def test_any_argument_can_be_written_into_the_table(tmp_path: Path, odd: object) -> None:
    argument = {"type": type(odd).__name__, "value": odd}
    inf = tensor(Max=float("inf"), Norm=float("nan"))
    golden = write(tmp_path / "g", [("Torch.einsum.0.forward", call(argument, out=inf))])
    code, _, rows = compare(golden, golden, tmp_path / "o", "--html")
    assert (code, len(rows)) == (0, 2)
    assert rows[0]["NPU max"] in {str(odd), repr(odd)[1:-1], str(float(2**70))}
    assert (rows[1]["NPU max"], rows[1]["NPU l2norm"]) == ("inf", "nan")


def test_workbook_goes_on_to_another_sheet_when_one_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import zipfile

    monkeypatch.setattr(results, "SHEET_ROWS", 4)
    golden = write(tmp_path / "g", chain(*APIS))
    compare(golden, golden, tmp_path / "o", "--xlsx")
    with zipfile.ZipFile(tmp_path / "o" / "compare_result.xlsx") as book:
        sheets = [name for name in book.namelist() if name.startswith("xl/worksheets/sheet")]
        counts = [book.read(name).count(b"<row ") for name in sheets]
    assert results.SHEET_ROWS == 4
    assert counts == [4, 4, 3]


def test_measured_tolerance_comes_from_the_reference_run(tmp_path: Path) -> None:
    golden = write(tmp_path / "g", chain(*APIS))
    noisy = write(tmp_path / "n", chain(*APIS, scales={1: 1.01}))
    target = write(tmp_path / "t", chain(*APIS, scales={1: 1.03}))
    assert compare(target, golden, tmp_path / "o")[0] == 1
    code, _, rows = compare(target, golden, tmp_path / "o", "--tolerance", "measured", "--reference", noisy)
    assert code == 0
    assert "measured: 8 times what" in rows[3]["Threshold Source"]
    far = write(tmp_path / "f", chain(*APIS, scales={1: 1.5}))
    assert compare(far, golden, tmp_path / "o", "--tolerance", "measured", "--reference", noisy)[0] == 1


def test_options_that_do_not_fit_exit_2(tmp_path: Path) -> None:
    golden = write(tmp_path / "g", chain(*APIS))
    both = ("-tp", golden, "-gp", golden, "-o", tmp_path / "o")
    for more in (["--tolerance", "measured"], ["--tolerance", "loose"], ["--reference", golden]):
        code, text = run(*both, *more)
        assert (code, "error:" in text) == (2, True)
    (tmp_path / "bad.yaml").write_text("layers: {a: b}")
    code, text = run(*both, "--map", tmp_path / "bad.yaml")
    assert (code, "unknown keys layers; allowed are modules and apis" in text.replace("\n", " ")) == (2, True)


def test_exact_tolerance_names_the_last_bit(tmp_path: Path) -> None:
    golden = write(tmp_path / "g", chain(*APIS))
    target = write(tmp_path / "t", chain(*APIS, scales={1: 1 + 1e-9}))
    assert compare(target, golden, tmp_path / "o")[0] == 0
    assert compare(target, golden, tmp_path / "o", "--tolerance", "exact")[0] == 1


def test_neither_torch_nor_mindspore_is_imported(tmp_path: Path) -> None:
    import subprocess

    golden = write(tmp_path / "g", chain(*APIS))
    code = (
        "import sys; from msprobe.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert not {'torch', 'mindspore', 'pandas'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", code, "compare", "-tp", str(golden), "-gp", str(golden), "-o", str(tmp_path / "o")]
    subprocess.run(command, check=True, capture_output=True)
