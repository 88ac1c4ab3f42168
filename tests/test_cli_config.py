"""`msprobe config`: exit codes, one clear message on stderr, and files that never vanish under the user."""

import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import url2pathname

import pytest

from msprobe.cli import main
from msprobe.core.config_load import load_config
from msprobe.core.config_model import COMMON_KEYS, SECTIONS
from msprobe.core.config_record import Task
from msprobe.core.config_source import SCHEMA_FILE


@pytest.fixture
def run(capsys):
    """Run the command line in this process; return exit code, stdout, stderr."""

    def call(*arguments):
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return caught.value.code or 0, captured.out, captured.err

    return call


@pytest.fixture
def config_file(tmp_path):
    def write(**content):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"dump_path": "out", **content}), encoding="utf-8")
        return path

    return write


def test_check_of_a_valid_file_says_for_whom(run, config_file):
    code, out, err = run("config", "check", config_file(task="overflow_check", level="L2"))
    assert (code, err) == (0, "")
    assert "no   PyTorch\n" in out
    assert "yes  MindSpore graph mode, jit_level O2" in out


def test_check_for_one_framework_refuses_with_exit_code_2_and_one_message(run, config_file):
    code, out, err = run("config", "check", config_file(task="overflow_check", level="L2"), "--framework", "pytorch")
    assert (code, out) == (2, "")
    assert err.startswith("error: config file ")
    assert err.count("error:") == 1
    assert "nan_check" in err


def test_check_prints_warnings_on_stderr_and_still_succeeds(run, config_file):
    code, out, err = run("config", "check", config_file(lvl="L1"))
    assert (code, err) == (0, 'warning: unknown keys are ignored: "lvl" (line 1, did you mean "level"?)\n')
    assert "is valid" in out


@pytest.mark.parametrize("arguments", [["none.json"], ["none.json", "--framework", "torch"], [], ["a", "b"]])
def test_bad_arguments_end_with_code_2_and_a_message(run, arguments):
    code, out, err = run("config", "check", *arguments)
    assert (code, out) == (2, "")
    assert err.strip()
    assert "Traceback" not in err


@pytest.mark.parametrize("task", [task.value for task in Task])
def test_new_file_is_valid_complete_and_explained(run, tmp_path, task):
    path = tmp_path / "new 中文.json"
    # MindSpore's own kernel dump takes plain paths only.
    dump_path = "./dumps" if task in ("overflow_check", "exception_dump") else "./c++ dumps"
    code, out, err = run("config", "new", path, "--task", task, "--dump-path", dump_path)
    assert (code, err) == (0, "")
    config = load_config(path, framework="any")
    assert (config.task, config.warnings) == (task, ())
    content = json.loads(path.read_text(encoding="utf-8"))
    assert content["dump_path"] == dump_path
    for key in (*content, *content.get(task, {})):
        assert f"  {key}: " in out


def test_new_file_names_its_schema_if_asked(run, tmp_path):
    path = tmp_path / "config.json"
    assert run("config", "new", path, "--schema")[0] == 0
    assert load_config(path).warnings == ()
    content = json.loads(path.read_text(encoding="utf-8"))
    assert next(iter(content)) == "$schema"
    assert json.loads(Path(url2pathname(urlparse(content["$schema"]).path)).read_text(encoding="utf-8"))["properties"]
    assert run("config", "check", path)[::2] == (0, "")


def test_schema_is_printed_as_it_is_shipped(run):
    code, out, err = run("config", "schema")
    assert (code, err) == (0, "")
    assert out == SCHEMA_FILE.read_text(encoding="utf-8")


def test_new_refuses_to_overwrite_unless_forced(run, config_file):
    path = config_file(level="mix")
    before = path.read_bytes()
    code, _, err = run("config", "new", path)
    assert code == 2
    assert "add --force to overwrite it" in err
    assert path.read_bytes() == before
    assert run("config", "new", path, "--force")[0] == 0
    assert load_config(path).level == "L1"


def test_new_names_what_is_wrong_with_its_arguments(run, tmp_path):
    code, _, err = run("config", "new", tmp_path / "c.json", "--task", "statistic")
    assert code == 2
    assert 'did you mean "statistics"?' in err
    code, _, err = run("config", "new", tmp_path / "c.json", "--dump-path", "")
    assert code == 2
    assert "dump_path" in err
    code, _, err = run("config", "new", tmp_path / "no folder" / "c.json")
    assert code == 2
    assert "No such file or directory" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [[], ["config"], ["config", "check"], ["config", "new"], ["config", "schema"]])
def test_every_command_has_help(run, arguments):
    code, out, _ = run(*arguments, "--help")
    assert code == 0
    if arguments[1:]:
        assert "Example: msprobe config" in " ".join(out.split())


def test_python_m_msprobe_is_the_same_command_and_reads_a_pipe(tmp_path):
    command = [sys.executable, "-m", "msprobe", "config", "check"]
    text = '{"dump_path": "out"}'
    result = subprocess.run(
        [*command, "/dev/stdin"], input=text, capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert "yes  PyTorch" in result.stdout
    result = subprocess.run([*command, "none.json"], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert result.returncode == 2
    assert result.stderr.startswith("error: config file none.json: 1 problem\n")


def test_document_names_every_key_and_its_examples_are_valid(pytestconfig, tmp_path):
    text = (pytestconfig.rootpath / "docs" / "config.md").read_text(encoding="utf-8")
    for key in (*COMMON_KEYS, *SECTIONS, *(key for model in SECTIONS.values() for key in model.model_fields)):
        assert f"`{key}`" in text
    examples = [part.partition("```")[0] for part in text.split("```json\n")[1:]]
    assert len(examples) >= 5
    for example in examples:
        path = tmp_path / "example.json"
        path.write_text(example, encoding="utf-8")
        assert load_config(path, framework="any").warnings == ()
