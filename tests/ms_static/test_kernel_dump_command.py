"""`msprobe config kernel-dump`: one JSON object on stdout, or exit code 2 and one message."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from msprobe.cli import main


@pytest.fixture
def run(capsys, tmp_path):
    def call(content, *arguments):
        file = tmp_path / "config.json"
        file.write_text(json.dumps({"dump_path": "/abs/dump", "level": "L2", **content}))
        with pytest.raises(SystemExit) as caught:
            main(["config", "kernel-dump", "-c", str(file), *arguments])
        captured = capsys.readouterr()
        return caught.value.code or 0, captured.out, captured.err

    return call


def test_prints_file_environment_and_json(run):
    code, out, err = run({"task": "tensor"}, "--jit-level", "O2", "--device-target", "Ascend")
    answer = json.loads(out)
    assert (code, err) == (0, "")
    assert list(answer) == ["file", "env", "json"]
    assert answer["file"] == "/abs/dump/kernel_graph_dump.json"
    assert answer["env"] == {"MINDSPORE_DUMP_CONFIG": answer["file"], "MS_ACL_DUMP_CFG_PATH": answer["file"]}
    assert answer["json"]["common_dump_settings"]["saved_data"] == "tensor"


def test_the_version_decides_what_hash_means(run):
    config = {"task": "statistics", "statistics": {"summary_mode": ["hash"]}}
    words = []
    for version in ("2.7.0", "2.10.0"):
        out = run(config, "--jit-level", "O1", "--mindspore-version", version)[1]
        words.append(json.loads(out)["json"]["common_dump_settings"]["statistic_category"])
    assert words == [["md5"], ["hash"]]


def test_cells_with_statistics_get_a_file_on_ascend_only(run):
    config = {"task": "statistics", "level": "L0"}
    answer = json.loads(run(config, "--jit-level", "O0")[1])
    assert answer["json"]["common_dump_settings"]["kernels"] == ["TensorDump"]
    assert answer["env"]["MS_KERNEL_LAUNCH_SKIP"] == "TensorDump"
    code, out, err = run(config, "--jit-level", "O0", "--device-target", "CPU")
    assert (code, out) == (2, "")
    assert "taps the graph itself" in err


def test_a_variable_that_must_not_be_set_is_named(run, monkeypatch):
    monkeypatch.setenv("MS_ACL_DUMP_CFG_PATH", "/old.json")
    _, out, err = run({"task": "tensor"}, "--jit-level", "O0")
    assert list(json.loads(out)["env"]) == ["MINDSPORE_DUMP_CONFIG"]
    assert err == "warning: MS_ACL_DUMP_CFG_PATH is set here and must not be: unset it\n"


REFUSED = [
    ({"task": "exception_dump"}, ["--jit-level", "O2"], "exception_dump"),
    ({"task": "tensor"}, ["--jit-level", "O3"], '"O0", "O1", "O2"'),
    ({"task": "tensor"}, ["--jit-level", "O0", "--device-target", "NPU"], '"Ascend"'),
    ({"task": "tensor", "level": "L0"}, ["--jit-level", "O0"], '"L2" for a kernel dump'),
    ({"task": "tensor", "tensor": {"data_mode": ["forward"]}}, ["--jit-level", "O0"], '"all", "input", "output"'),
    ({"task": "statistics", "statistics": {"summary_mode": "xor"}}, ["--jit-level", "O0"], "summary_mode"),
    ({"task": "tensor", "dump_path": "/tmp/a.b"}, ["--jit-level", "O0"], "letters, digits"),
]


@pytest.mark.parametrize(("config", "arguments", "text"), REFUSED)
def test_refuses_with_exit_code_2_and_one_message(run, config, arguments, text):
    code, out, err = run(config, *arguments)
    assert (code, out) == (2, "")
    assert err.count("error:") == 1
    assert text in err


def test_needs_no_framework(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"dump_path": "/abs/dump", "level": "L2", "task": "tensor"}))
    words = ["config", "kernel-dump", "-c", str(file), "--jit-level", "O0"]
    program = f"""
import sys
sys.modules["torch"] = sys.modules["mindspore"] = None
from msprobe.cli import main
main({words!r})
"""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout)["file"] == "/abs/dump/kernel_kbyk_dump.json"
