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


@pytest.mark.parametrize("name", ["statistics", "tensor"])
def test_graph_mode_takes_the_dump_samples_at_its_own_levels(sample_file, tmp_path, name):
    with pytest.raises(ConfigError) as caught:
        load_config(sample_file(name), framework="mindspore/static")
    assert [(problem.path, problem.value) for problem in caught.value.problems] == [("level", "L1")]
    assert 'jit_level O0/O1 at level "L0" or "L2"' in str(caught.value)
    for framework, level in (
        ("mindspore/O0", "L0"),
        ("mindspore/O1", "L0"),
        *(("mindspore/" + o, "L2") for o in ("O0", "O1", "O2")),
    ):
        content = json.loads(SAMPLES[name][0])
        content["dump_path"] = "/home/data_dump"
        path = tmp_path / "graph.json"
        path.write_text(json.dumps({**content, "level": level}), encoding="utf-8")
        assert load_config(path, framework=framework).level == level


# Single settings that the reference shows as examples: framework, level, content.
MODULES = ["Module.conv1.Conv2d.forward.0", "Module.fc2.Linear.forward.0"]
CELLS = ["Cell.conv1.Conv2d.forward.0", "Cell.fc2.Dense.backward.0"]
APIS = ["Tensor.add.0.forward", "Functional.square.2.forward"]
NAMES = ["Tensor.permute.1.forward", "Tensor.transpose.2.forward", "Torch.relu.3.backward"]
PARALLEL = "Module.module.language_model.encoder.layers.0.mlp.ParallelMlp.forward.0"
DYNAMIC = "mindspore/dynamic"
SETTINGS = [
    ("pytorch", "L1", {"rank": [1, "4-6"], "step": [0, 1, 2, "4-6"]}),
    ("pytorch", "L1", {"extra_info": False, "risk_level": "CORE", "dump_enable": True}),
    ("pytorch", "L1", {"statistics": {"list": NAMES}}),
    ("pytorch", "L2", {"statistics": {"list": NAMES}}),
    ("pytorch", "mix", {"statistics": {"list": [PARALLEL]}}),
    ("pytorch", "L1", {"statistics": {"list": ["relu"], "tensor_list": ["relu"]}}),
    ("pytorch", "mix", {"statistics": {"list": ["relu"]}}),
    ("pytorch", "L0", {"statistics": {"scope": MODULES}}),
    ("pytorch", "mix", {"statistics": {"scope": MODULES}}),
    ("pytorch", "L1", {"statistics": {"scope": APIS}}),
    ("pytorch", "mix", {"statistics": {"scope": APIS}}),
    ("pytorch", "L1", {"statistics": {"data_mode": ["backward"]}}),
    ("pytorch", "L1", {"statistics": {"data_mode": ["forward", "input"]}}),
    *[("pytorch", "L1", {"statistics": {"summary_mode": mode}}) for mode in ("md5", "statistics", "xor")],
    ("pytorch", "L1", {"task": "tensor", "tensor": {"summary_mode": "md5", "bench_path": "./b", "diff_nums": 3}}),
    ("pytorch", "L1", {"task": "acc_check", "acc_check": {"white_list": ["conv1d", "conv2d"]}}),
    ("pytorch", "L1", {"task": "acc_check", "acc_check": {"black_list": ["conv1d", "conv2d"]}}),
    ("pytorch", "L1", {"task": "nan_check", "nan_check": {"tensor_list": ["truediv"]}}),
    ("pytorch", "L1", {"async_dump": True}),
    ("pytorch", "debug", {"async_dump": True, "task": "tensor"}),
    (DYNAMIC, "L1", {"rank": [1, "4-6"]}),
    (DYNAMIC, "mix", {"statistics": {"list": [PARALLEL.replace("Module.module", "Cell.network_with_loss")]}}),
    (DYNAMIC, "L0", {"statistics": {"scope": CELLS}}),
    (DYNAMIC, "mix", {"statistics": {"scope": CELLS}}),
    ("mindspore/O0", "L2", {"statistics": {"list": ["name-regex(Default/.+)"]}}),
    ("mindspore/O2", "L2", {"statistics": {"list": ["name-regex(Default/.+)"]}}),
    ("mindspore/O2", "L2", {"statistics": {"summary_mode": ["max", "min"]}}),
    *[("mindspore/O0", "L0", {"statistics": {"data_mode": [word]}}) for word in ("all", "forward", "backward")],
    *[("mindspore/O2", "L2", {"statistics": {"data_mode": [word]}}) for word in ("all", "input", "output")],
    ("mindspore/O1", "L0", {"statistics": {"summary_mode": ["max", "min"], "device": "device"}}),
    *[
        ("mindspore/O2", "L2", {"task": "overflow_check", "overflow_check": {"check_mode": w}})
        for w in ("aicore", "all")
    ],
    *[("mindspore/O2", "L2", {"task": "tensor", "tensor": {"file_format": word}}) for word in ("bin", "npy")],
]

# What the reference says does not work: framework, level, content, the key that is named.
REFUSED_SETTINGS = [
    ("pytorch", "L2", {}, "statistics.list"),
    ("pytorch", "L1", {"async_dump": True, "task": "tensor"}, "tensor.list"),
    ("pytorch", "L1", {"async_dump": True, "statistics": {"summary_mode": "md5"}}, "statistics.summary_mode"),
    ("pytorch", "L1", {"task": "nan_check", "nan_check": {"data_mode": ["input"]}}, "nan_check.data_mode"),
    ("pytorch", "mix", {"task": "nan_check"}, "level"),
    ("pytorch", "L1", {"statistics": {"scope": MODULES[:1]}}, "statistics.scope"),
    ("pytorch", "L1", {"statistics": {"data_mode": ["all", "input"]}}, "statistics.data_mode"),
    ("pytorch", "L1", {"statistics": {"summary_mode": ["max", "min"]}}, "statistics.summary_mode"),
    (DYNAMIC, "L1", {"statistics": {"summary_mode": "xor"}}, "statistics.summary_mode"),
    ("mindspore/O0", "L0", {"rank": [1]}, "rank"),
    ("mindspore/O0", "L0", {"statistics": {"data_mode": ["forward", "backward"]}}, "statistics.data_mode"),
    ("mindspore/O2", "L2", {"statistics": {"list": ["MatMul"]}}, "statistics.list[0]"),
    ("mindspore/O2", "L2", {"statistics": {"summary_mode": ["hash"]}}, "statistics.summary_mode"),
    ("mindspore/O0", "L0", {"statistics": {"summary_mode": "md5"}}, "statistics.summary_mode"),
    ("mindspore/O0", "L2", {"statistics": {"tensor_list": ["relu"]}}, "statistics.tensor_list"),
    ("mindspore/O2", "L1", {"task": "overflow_check"}, "level"),
    ("mindspore/O0", "L2", {"task": "overflow_check"}, "task"),
    ("mindspore/O2", "L2", {"task": "exception_dump"}, "task"),
    (DYNAMIC, "L1", {"task": "exception_dump"}, "level"),
]


@pytest.fixture
def setting(tmp_path):
    def load(framework, level, content):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"dump_path": "/home/data_dump", "level": level, **content}), encoding="utf-8")
        return load_config(path, framework=framework)

    return load


@pytest.mark.parametrize(("framework", "level", "content"), SETTINGS)
def test_setting_that_the_reference_shows_is_taken_without_a_word(setting, framework, level, content):
    assert setting(framework, level, content).warnings == ()


@pytest.mark.parametrize(("framework", "level", "content", "key"), REFUSED_SETTINGS)
def test_setting_that_the_reference_rules_out_is_refused(setting, framework, level, content, key):
    with pytest.raises(ConfigError) as caught:
        setting(framework, level, content)
    assert [problem.path for problem in caught.value.problems] == [key]
