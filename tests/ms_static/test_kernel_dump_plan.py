"""What MindSpore's kernel dump is given for a configuration, row by row of the mapping, and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
from golden_dumps import FILES, Golden

from msprobe.core.config_load import load_config
from msprobe.core.errors import ConfigError
from msprobe.core.support import Mode
from msprobe.ms_static.acceptance import mode_of_jit_level
from msprobe.ms_static.kernel_dump import Target, plan_kernel_dump
from msprobe.ms_static.versions import installed_version, parse_version


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_configuration_becomes_the_file_and_environment_of_its_golden_row(file, tmp_path):
    golden = Golden.read(file)
    plan = golden.plan(tmp_path)
    assert plan.file == Path("/abs/dump") / golden.file
    assert dict(plan.environment) == golden.env
    assert json.dumps(plan.content) == json.dumps(golden.json)  # the order of keys and categories included


# What each key of the configuration can be, by the modes that take it: every row of the mapping in docs/mindspore.md.
KERNEL_BY_KERNEL = {
    "task": ["statistics", "tensor", "exception_dump"],
    "step": [[], "chosen"],
    "rank": [[], "chosen"],
    "list": [[], "chosen"],
    "data_mode": [["all"], ["input"], ["output"]],
    "summary_mode": ["statistics", "md5", "chosen"],
    "device": ["host", "device"],
    "precision": ["low", "high"],
    "async_dump": [False, True],
    "file_format": ["npy", "bin"],
}
WHOLE_GRAPH = {
    key: KERNEL_BY_KERNEL[key] for key in ("step", "rank", "list", "data_mode", "summary_mode", "file_format")
}
WHOLE_GRAPH |= {"task": ["statistics", "tensor", "overflow_check"], "check_mode": ["all", "aicore", "atomic"]}
JIT_PARTS = {key: KERNEL_BY_KERNEL[key] for key in ("task", "step", "rank", "list", "summary_mode", "precision")}
ROWS = {("O0", "O1"): KERNEL_BY_KERNEL, ("O2",): WHOLE_GRAPH, ("PYNATIVE",): JIT_PARTS | {"summary_mode": ["chosen"]}}


@pytest.mark.parametrize("modes", ROWS)
def test_every_row_of_the_mapping_has_a_golden_file(modes):
    found = [golden for golden in map(Golden.read, FILES) if golden.mode in modes and golden.config["level"] == "L2"]
    for key, values in ROWS[modes].items():
        present = [chosen(golden.config, key, values[0]) for golden in found]
        assert [value for value in values if value not in present] == [], key


def chosen(config, key, default):
    """What a configuration says of a key; "chosen" for a list of one's own."""
    value = {**config, **config.get(config["task"], {})}.get(key, default)
    return "chosen" if isinstance(value, list) and value not in ([], ["all"], ["input"], ["output"]) else value


@pytest.mark.parametrize(("target", "task"), [("Ascend", "statistics"), ("CPU", "tensor"), ("GPU", "statistics")])
def test_only_statistics_on_cpu_are_left_to_us(target, task, tmp_path):
    plan = plan_of(tmp_path, "O0", target=target, task=task)
    assert not plan.measured
    assert plan_of(tmp_path, "O0", target="cpu", task="statistics").measured


def plan_of(folder, mode, *, target="Ascend", version="2.10.0", environ=None, **config):
    """The plan for a configuration that was loaded before the mode was known."""
    file = folder / "config.json"
    file.write_text(json.dumps({"dump_path": "/abs/dump", "level": "L2", **config}))
    config = load_config(file, framework="mindspore")
    mode = Mode.DYNAMIC if mode == "PYNATIVE" else mode_of_jit_level(mode)
    return plan_kernel_dump(
        config, mode, target=Target.from_word(target), version=parse_version(version), environ=environ or {}
    )


def statistics(**keys):
    return {"task": "statistics", "statistics": keys}


# mode, configuration (valid for another mode), what the message must say: key and value, and what works instead
REFUSALS = [
    ("O2", {"task": "exception_dump"}, ['task = "exception_dump"', "jit_level O0/O1"]),
    ("O0", {"task": "overflow_check"}, ['task = "overflow_check"', "jit_level O2"]),
    ("PYNATIVE", {"task": "overflow_check"}, ['task = "overflow_check"', "jit_level O2"]),
    ("O2", statistics(list=["Conv2D"]), ['statistics.list[0] = "Conv2D"', "not a kernel type", "(.*Conv2D.*)"]),
    ("O2", statistics(summary_mode=["count"]), ['.summary_mode = ["count"]', '"max", "min", "mean", "l2norm"']),
    ("O2", {"task": "tensor", "async_dump": True, "tensor": {"list": ["a/b"]}}, ["async_dump = true", "level"]),
    ("O0", {**statistics(), "dump_path": "out put"}, ["dump_path", "letters, digits"]),
    ("O0", {**statistics(), "level": "L0"}, ['level = "L0"', '"L2" for a kernel dump']),
    ("O0", {**statistics(), "level": "L1"}, ['level = "L1"', '"L2" for a kernel dump', "dynamic graph"]),
]  # fmt: skip


@pytest.mark.parametrize(("mode", "config", "texts"), REFUSALS)
def test_a_mode_refuses_what_it_cannot_do_and_says_what_works(mode, config, texts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if config.get("dump_path") == "out put":
        (tmp_path / "out put").mkdir()
        monkeypatch.chdir(tmp_path / "out put")  # a relative path leads to where MindSpore cannot write
        config = {**config, "dump_path": "dump"}
    with pytest.raises(ConfigError) as caught:
        plan_of(tmp_path, mode, **config)
    assert all(text in str(caught.value) for text in texts), str(caught.value)


@pytest.mark.parametrize("pattern", ["(?P<name>Conv)", "(?i)conv", "(?<=Default/).+", r"\ADefault"])
def test_patterns_that_only_python_knows_are_refused_before_mindspore_meets_them(pattern, tmp_path):
    with pytest.raises(ConfigError, match="ECMAScript") as caught:
        plan_of(tmp_path, "O0", **statistics(list=[f"name-regex({pattern})"]))
    assert "statistics.list[0]" in str(caught.value)


@pytest.mark.parametrize("pattern", ["(?:Conv|Dense)/.+", "(?=Default).+", "(?!Gradients).+", r"Default\\A.*"])
def test_patterns_that_both_know_are_accepted(pattern, tmp_path):
    plan = plan_of(tmp_path, "O0", **statistics(list=[f"name-regex({pattern})"]))
    assert plan.content["common_dump_settings"]["kernels"] == [f"name-regex({pattern})"]


def test_graph_op_run_is_refused_with_o2_only(tmp_path):
    with pytest.raises(ConfigError, match="GRAPH_OP_RUN"):
        plan_of(tmp_path, "O2", environ={"GRAPH_OP_RUN": "1"}, **statistics())
    plan_of(tmp_path, "O2", environ={"GRAPH_OP_RUN": "0"}, **statistics())
    plan_of(tmp_path, "O0", environ={"GRAPH_OP_RUN": "1"}, **statistics())


def test_overflow_check_is_refused_on_cpu_and_exception_dump_says_that_it_keeps_nothing(tmp_path):
    with pytest.raises(ConfigError, match="no overflow detection"):
        plan_of(tmp_path, "O2", target="CPU", task="overflow_check")
    assert (
        "keeps nothing on device target CPU" in plan_of(tmp_path, "O0", target="CPU", task="exception_dump").remarks[0]
    )


def test_check_mode_is_told_to_be_without_effect_from_2_3_on(tmp_path):
    config = {"task": "overflow_check", "overflow_check": {"check_mode": "aicore"}}
    assert "2.10.0" in plan_of(tmp_path, "O2", version="2.10.0", **config).remarks[0]
    assert plan_of(tmp_path, "O2", version="2.2.14", **config).remarks == ()


def test_several_reasons_come_in_one_message(tmp_path):
    config = {"task": "statistics", "statistics": {"list": ["Conv2D"], "summary_mode": ["hash"]}}
    with pytest.raises(ConfigError) as caught:
        plan_of(tmp_path, "O2", **config)
    assert len(caught.value.problems) == 2


def test_versions_are_compared_as_numbers():
    assert parse_version("2.10.0") > parse_version("2.7.0") > parse_version("2.2.14")
    assert parse_version("2.7.0rc1") == parse_version("2.7") == (2, 7, 0)
    assert installed_version() >= (2, 0, 0)
    with pytest.raises(ConfigError, match=r'"2\.7\.0"'):
        parse_version("latest")
