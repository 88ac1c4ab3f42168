"""The eight samples of the reference document, verbatim, are taken by exactly those they are meant for."""

import json

import pytest

from msprobe.core.config_load import load_config
from msprobe.core.errors import ConfigError

STATISTICS = """{
    "task": "statistics",
    "dump_path": "/home/data_dump",
    "rank": [],
    "step": [],
    "level": "L1",
    "async_dump": false,
    "extra_info": true,

    "statistics": {
        "scope": [], 
        "list": [],
        "tensor_list": [],
        "data_mode": ["all"],
        "summary_mode": "statistics"
    }
}"""  # noqa: W291 - verbatim
TENSOR = """{
    "task": "tensor",
    "dump_path": "/home/data_dump",
    "rank": [],
    "step": [],
    "level": "L1",
    "async_dump": false,

    "tensor": {
        "scope": [],
        "list":[],
        "data_mode": ["all"],
        "bench_path": "/home/bench_data_dump",
        "summary_mode": "md5",
        "diff_nums": 5        
    }
}"""  # noqa: W291 - verbatim
ACC_CHECK = """{
    "task": "acc_check",
    "dump_path": "/home/data_dump",
    "rank": [],
    "step": [],
    "level": "L1",

    "acc_check": {
        "white_list": [],
        "black_list": [],
        "error_data_path": "./"
    }
}"""
OVERFLOW_CHECK = """{
    "task": "overflow_check",
    "dump_path": "/home/data_dump",
    "rank": [],
    "step": [],
    "level": "L2",

    "overflow_check": {
        "check_mode": "all"
    }
}"""
NAN_CHECK = """{
    "task": "nan_check",
    "dump_path": "/home/data_dump",
    "rank": [],
    "step": [],
    "level": "L1",

    "nan_check": {
      "list": [],
      "scope": [],
      "tensor_list": [],
      "data_mode": ["all"] 
    }
}"""  # noqa: W291 - verbatim
STRUCTURE = """{
    "task": "structure",
    "dump_path": "/home/data_dump",
    "rank": [],
    "step": [],
    "level": "mix"
}"""
EXCEPTION_DUMP = """{
    "task": "exception_dump",
    "dump_path": "/home/data_dump",
    "rank": [],
    "step": [],
    "level": "L2"
}"""
DUMP_ENABLE = """{
    "task": "statistics",
    "dump_path": "/home/data_dump",
    "rank": [],
    "step": [],
    "level": "L1",
    "dump_enable": false,
    "statistics": {
        "summary_mode": "statistics"
    }
}"""

# sample, the frameworks that its text names, those it does not name
SAMPLES = {
    "statistics": (STATISTICS, ["pytorch", "mindspore", "mindspore/dynamic"], []),
    "tensor": (TENSOR, ["pytorch", "mindspore", "mindspore/dynamic"], []),
    "acc_check": (ACC_CHECK, ["pytorch"], ["mindspore"]),
    "overflow_check": (
        OVERFLOW_CHECK,
        ["mindspore", "mindspore/O2"],
        ["pytorch", "mindspore/dynamic", "mindspore/O0", "mindspore/O1"],
    ),
    "nan_check": (NAN_CHECK, ["pytorch"], ["mindspore"]),
    "structure": (STRUCTURE, ["pytorch", "mindspore", "mindspore/dynamic"], ["mindspore/static"]),
    "exception_dump": (
        EXCEPTION_DUMP,
        ["mindspore", "mindspore/dynamic", "mindspore/O0", "mindspore/O1"],
        ["pytorch", "mindspore/O2"],
    ),
    "dump_enable": (DUMP_ENABLE, ["pytorch"], []),
}
TAKEN = [(name, framework) for name, (_, taken, _) in SAMPLES.items() for framework in (*taken, "any")]
REFUSED = [(name, framework) for name, (_, _, refused) in SAMPLES.items() for framework in refused]


@pytest.fixture
def sample_file(tmp_path):
    def write(name):
        path = tmp_path / "config.json"
        path.write_text(SAMPLES[name][0], encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize(("name", "framework"), TAKEN)
def test_sample_is_taken_where_the_reference_says_so(sample_file, name, framework):
    config = load_config(sample_file(name), framework=framework)
    content = json.loads(SAMPLES[name][0])
    assert (config.task, config.level, str(config.dump_path)) == (content["task"], content["level"], "/home/data_dump")


@pytest.mark.parametrize(("name", "framework"), REFUSED)
def test_sample_is_refused_elsewhere_and_the_message_says_what_would_work(sample_file, name, framework):
    with pytest.raises(ConfigError) as caught:
        load_config(sample_file(name), framework=framework)
    (problem,) = caught.value.problems
    content = json.loads(SAMPLES[name][0])
    assert (problem.path, problem.value) == ("task", content["task"])
    assert f'task "{content["task"]}" with level "{content["level"]}"' in problem.allowed
    assert problem.hint.startswith(f'task "{content["task"]}" works on ')


def test_samples_meant_for_pytorch_give_no_warning(sample_file):
    for name in ("statistics", "tensor", "acc_check", "nan_check", "structure", "dump_enable"):
        assert load_config(sample_file(name)).warnings == ()


def test_overflow_check_on_pytorch_names_mindspore_and_a_pytorch_task(sample_file):
    with pytest.raises(ConfigError) as caught:
        load_config(sample_file("overflow_check"))
    assert 'jit_level O2 at level "L2"' in str(caught.value)
    assert 'on PyTorch use task "nan_check" at level "L1"' in str(caught.value)


def test_tensor_sample_keeps_every_option(sample_file):
    config = load_config(sample_file("tensor"))
    assert (str(config.bench_path), config.summary_mode, config.diff_nums) == ("/home/bench_data_dump", "md5", 5)


def test_dump_enable_sample_is_dynamic_and_starts_switched_off(sample_file):
    assert load_config(sample_file("dump_enable")).dump_enable is False
    assert load_config(sample_file("statistics")).dump_enable is None
