"""``msprobe acc_check`` as a real command: lists, results, wrong operators, crashes, resume, bad input."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from typer.testing import CliRunner

from msprobe.cli import app

Command = Callable[..., subprocess.CompletedProcess[str]]


def msprobe(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "msprobe", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=120,
        check=False,
    )


def table(folder: Path, name: str = "acc_check_result.csv") -> list[dict[str, str]]:
    with (folder / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def verdicts(folder: Path) -> dict[str, tuple[str, str]]:
    return {row["API Name"]: (row["Forward Test Success"], row["Backward Test Success"]) for row in table(folder)}


def small_step(dtype: torch.dtype = torch.float32) -> Callable[[], None]:
    torch.manual_seed(0)
    convolution, linear, norm = nn.Conv2d(3, 16, 3).to(dtype), nn.Linear(36, 64).to(dtype), nn.LayerNorm(64).to(dtype)
    x, other = torch.randn(8, 3, 8, 8, dtype=dtype), torch.randn(64, 64).div(16).to(dtype)

    def step() -> None:
        y = norm(linear(convolution(x).flatten(2)))
        z = torch.matmul(torch.cat([y, y * 2]), other)
        (torch.tanh(z) * torch.exp(-z * z)).mean().backward()

    return step


@pytest.mark.usefixtures("broken_operators")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_wrong_operators_are_found_and_right_ones_are_not(
    record: Callable[..., Path], tmp_path: Path, dtype: torch.dtype
) -> None:
    folder = record(small_step(dtype))
    broken = "noise channel backward swapped" + (" accumulator" if dtype is torch.float32 else "")
    done = msprobe("acc_check", "-i", folder, "-o", tmp_path / "out", "--import", "broken_operators", BROKEN=broken)
    assert done.returncode == 1, done.stderr
    found = verdicts(tmp_path / "out")
    assert found["Functional.linear.0"][0] == "error"
    assert found["Functional.conv2d.0"][0] == "error"
    assert found["Functional.layer_norm.0"] == ("pass", "error")
    assert found["Torch.cat.0"][0] == "error"
    wrong = {name for name, both in found.items() if "error" in both or "warning" in both}
    expected = {"Functional.linear.0", "Functional.conv2d.0", "Functional.layer_norm.0", "Torch.cat.0"}
    assert wrong == expected | ({"Torch.matmul.0"} if dtype is torch.float32 else set())


@pytest.mark.usefixtures("broken_operators")
def test_a_reproducer_script_repeats_the_failure_and_passes_once_it_is_mended(
    record: Callable[..., Path], tmp_path: Path
) -> None:
    folder = record(small_step())
    config = tmp_path / "config.json"
    section = {"white_list": ["linear", "layer_norm", "cat"], "error_data_path": str(tmp_path / "kept")}
    config.write_text(json.dumps({"task": "statistics", "dump_path": "./x", "acc_check": section}), encoding="utf-8")
    out = tmp_path / "out"
    done = msprobe(
        *("acc_check", "-i", folder / "dump.json", "-c", config, "-o", out, "--import", "broken_operators"),
        BROKEN="noise backward swapped",
    )
    assert done.returncode == 1, done.stderr
    scripts = [Path(row["Reproducer"]) / "reproduce.py" for row in table(out)]
    assert {script.parents[1] for script in scripts} == {tmp_path / "kept" / "acc_check_error_data"}
    assert f"next: python {scripts[0]}" in done.stdout
    assert all(script.is_file() for script in scripts)
    script = next(script for script in scripts if "layer_norm" in script.parent.name)
    assert {entry.name for entry in script.parent.iterdir()} == {
        *("reproduce.py", "inputs.pt", "gradients.pt", "device.pt", "reference.pt")
    }
    run = [sys.executable, str(script)]
    environment = {**os.environ, "BROKEN": "noise backward swapped"}
    again = subprocess.run(run, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert again.returncode == 1, again.stderr
    assert "WRONG" in again.stdout
    text = script.read_text(encoding="utf-8")
    script.write_text(text.replace("import broken_operators\n", ""), encoding="utf-8")
    mended = subprocess.run(run, capture_output=True, text=True, timeout=60, check=False)
    assert mended.returncode == 0, mended.stdout + mended.stderr


@pytest.mark.usefixtures("broken_operators")
def test_a_process_that_dies_or_hangs_costs_one_call_only(record: Callable[..., Path], tmp_path: Path) -> None:
    folder = record(small_step())
    done = msprobe(
        *("acc_check", "-i", folder, "-o", tmp_path / "out", "--import", "broken_operators"),
        *("--jobs", 1, "--timeout", 4),
        BROKEN="dies dies_once hangs",
        MARK=str(tmp_path / "mark"),
    )
    assert done.returncode == 1, done.stderr
    rows = {row["API Name"]: row for row in table(tmp_path / "out")}
    assert rows["Torch.matmul.0"]["Forward Test Success"] == "error"
    assert "the process died twice: SIGSEGV" in rows["Torch.matmul.0"]["Message"]
    assert rows["Torch.tanh.0"]["Forward Test Success"] == "error"
    assert "no answer within 4 s" in rows["Torch.tanh.0"]["Message"]
    assert rows["Torch.exp.0"]["Forward Test Success"] == "pass"
    assert "the process died the first time (exit code 7" in rows["Torch.exp.0"]["Notes"]
    others = [row for name, row in rows.items() if name not in ("Torch.tanh.0", "Torch.matmul.0")]
    assert {row["Forward Test Success"] for row in others} == {"pass"}


@pytest.mark.usefixtures("broken_operators")
def test_a_check_goes_on_after_sigkill(record: Callable[..., Path], tmp_path: Path) -> None:
    folder, out = record(small_step()), tmp_path / "out"
    arguments = ["acc_check", "-i", str(folder), "-o", str(out), "--import", "broken_operators", "--jobs", "1"]
    environment = {**os.environ, "BROKEN": "hangs"}
    running = subprocess.Popen([sys.executable, "-m", "msprobe", *arguments], env=environment)
    end = time.monotonic() + 60
    while time.monotonic() < end and not ((out / "acc_check_result.csv").exists() and len(table(out)) >= 6):
        time.sleep(0.05)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    before = table(out)
    assert before
    with (out / "acc_check_result.csv").open("a", encoding="utf-8") as file:
        file.write("Torch.tanh.0,pa")  # half a line
    refused = msprobe(*arguments)
    assert refused.returncode == 2
    assert "continue it with --resume, replace it with --force" in refused.stderr
    done = msprobe(*arguments, "--resume")
    assert done.returncode == 0, done.stderr
    assert f"{len(before)} of them were finished before" in done.stdout
    after = table(out)
    assert [row["API Name"] for row in after] == [
        name.removesuffix(".forward")
        for name in json.loads((folder / "dump.json").read_text(encoding="utf-8"))["data"]
        if name.endswith(".forward")
    ]
    assert all(row in after for row in before)
    details = [tuple(row.values())[:3] for row in table(out, "acc_check_details.csv")]
    assert len(details) == len(set(details))
    other = msprobe(*arguments, "--resume", "--seed", "3")
    assert other.returncode == 2
    assert "are of another check: seed was 0, now 3" in other.stderr


def test_lists_choose_the_apis_and_unknown_names_are_told(record: Callable[..., Path], tmp_path: Path) -> None:
    folder, config = record(small_step()), tmp_path / "config.json"
    section = {"white_list": ["linear", "matmul", "tan"], "black_list": ["Torch.matmul"]}
    config.write_text(json.dumps({"task": "acc_check", "dump_path": "./x", "acc_check": section}), encoding="utf-8")
    done = msprobe("acc_check", "-i", folder, "-c", config, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert verdicts(tmp_path / "out") == {"Functional.linear.0": ("pass", "pass")}
    assert 'white_list: no API of this dump is called "tan"; did you mean "tanh"?' in done.stdout
    assert "1 API calls: 1 pass, 0 warning, 0 error, 0 skip" in done.stdout
    section["black_list"] = ["linear", "matmul", "tan"]
    section["white_list"] = []
    config.write_text(json.dumps({"acc_check": {"white_list": ["conv3d"]}}), encoding="utf-8")
    none = msprobe("acc_check", "-i", folder, "-c", config, "-o", tmp_path / "none")
    assert none.returncode == 2
    assert "leave none of the" in none.stderr
    assert 'did you mean "conv2d"?' in none.stderr


def test_missing_tensor_files_and_unknown_apis_are_told(record: Callable[..., Path], tmp_path: Path) -> None:
    folder = record(small_step(), task="tensor")
    (folder / "dump_tensor_data" / "Functional.linear.0.forward.input.0.pt").unlink()
    (folder / "dump_tensor_data" / "Functional.layer_norm.0.forward.input.0.pt").write_bytes(b"no tensor")
    content = json.loads((folder / "dump.json").read_text(encoding="utf-8"))
    record_of = content["data"]["Torch.tanh.0.forward"]
    lost = json.loads(json.dumps(record_of))
    lost["input_args"][0] |= {"Max": None, "Min": None, "data_name": "gone.pt"}
    content["data"] |= {
        "Torch.warp.0.forward": record_of,
        "mylib.fused.0.forward": record_of,
        "Torch.cos.0.forward": lost,
    }
    content["data"] |= {"Distributed.all_reduce.0.forward": record_of, "Torch.rand.0.forward": record_of}
    (folder / "dump.json").write_text(json.dumps(content), encoding="utf-8")
    done = msprobe("acc_check", "-i", folder, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    rows = {row["API Name"]: row for row in table(tmp_path / "out")}
    assert rows["Functional.linear.0"]["Forward Test Success"] == "pass"
    assert "linear.0.forward.input.0.pt is missing: made from its statistics" in rows["Functional.linear.0"]["Notes"]
    assert "cannot be read" in rows["Functional.layer_norm.0"]["Notes"]
    reasons = {name: row["Message"] for name, row in rows.items() if row["Forward Test Success"] == "skip"}
    assert set(reasons) == {
        *("Torch.warp.0", "mylib.fused.0", "Torch.cos.0", "Distributed.all_reduce.0", "Torch.rand.0")
    }
    assert reasons["Torch.warp.0"].startswith("forward: unknown API: torch ")
    assert reasons["mylib.fused.0"].endswith("give the module that defines it with --import")
    assert "its file gone.pt is missing" in reasons["Torch.cos.0"]
    assert "needs the other ranks" in reasons["Distributed.all_reduce.0"]
    assert "random: two runs differ" in reasons["Torch.rand.0"]
    assert "skipped 1: communication: needs the other ranks" in done.stdout


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{}", 'no object under the key "data"'),
        ("not json", "not JSON"),
        ('{"framework": "mindspore", "data": {"Mint.add.0.forward": {}}}', "replays PyTorch APIs only"),
        ('{"task": "structure", "data": {}}', 'task "structure" holds no inputs'),
        ('{"level": "L0", "data": {"Module.a.Linear.forward.0": {}}}', "record at level L1 or mix"),
    ],
)
def test_a_dump_that_cannot_be_checked_is_bad_input(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "dump.json").write_text(content, encoding="utf-8")
    done = CliRunner().invoke(app, ["acc_check", "-i", str(tmp_path / "dump.json"), "-o", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert said in done.stderr


def test_a_device_or_module_that_is_not_there_is_bad_input(record: Callable[..., Path], tmp_path: Path) -> None:
    folder = record(lambda: F.relu(torch.ones(2)))
    for arguments, said in (
        (["--device", "tpu"], "one of cpu, cuda, npu"),
        (["--import", "no_such_module"], "No module named 'no_such_module'"),
        *([] if torch.cuda.is_available() else [(["--device", "cuda"], "sees no cuda device")]),
    ):
        done = msprobe("acc_check", "-i", folder, "-o", tmp_path / "out", "--force", *arguments)
        assert done.returncode == 2
        assert said in done.stderr


def test_the_process_that_reads_the_dump_imports_no_framework() -> None:
    code = "import sys, msprobe.cli, msprobe.replay.check, msprobe.replay.terminal; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_help_has_an_example() -> None:
    done = CliRunner().invoke(app, ["acc_check", "--help"])
    assert done.exit_code == 0
    assert "Example: msprobe acc_check -i" in done.stdout
