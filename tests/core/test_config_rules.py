"""What keys demand of each other and what each framework takes: combinations, not single values."""

import json

import pytest

from msprobe.core.config_load import load_config
from msprobe.core.errors import ConfigError

API = ["Tensor.add.0.forward", "Functional.square.2.forward"]
MODULES = ["Module.conv1.Conv2d.forward.0", "Module.fc2.Linear.backward.0"]
CELLS = ["Cell.conv1.Conv2d.forward.0", "Cell.fc2.Dense.backward.0"]
COUNTS = [
    "count",
    "negative zero count",
    "zero count",
    "positive zero count",
    "nan count",
    "negative inf count",
    "positive inf count",
]
DYNAMIC, O0, O1, O2 = "mindspore/dynamic", "mindspore/O0", "mindspore/O1", "mindspore/O2"


@pytest.fixture
def load(tmp_path):
    path = tmp_path / "config.json"

    def run(framework, task, level, section=None, **common):
        content = {"task": task, "level": level, "dump_path": "out", **common}
        if section:
            content[task] = section
        path.write_text(json.dumps(content), encoding="utf-8")
        return load_config(path, framework=framework)

    return run


# framework, task, level, section, common keys
VALID = [
    # scope: modules at L0, APIs at L1, either at mix
    ("pytorch", "statistics", "L0", {"scope": MODULES}, {}),
    ("pytorch", "statistics", "L1", {"scope": API}, {}),
    ("pytorch", "tensor", "mix", {"scope": [MODULES[0], API[1]]}, {}),
    ("pytorch", "tensor", "mix", {"scope": API, "list": ["relu"]}, {}),
    (DYNAMIC, "statistics", "L0", {"scope": CELLS}, {}),
    ("pytorch", "nan_check", "L1", {"scope": API, "list": ["a"], "tensor_list": ["truediv"]}, {}),
    # list at L2
    ("pytorch", "tensor", "L2", {"list": ["Torch.matmul.0.forward"]}, {}),
    ("mindspore/static", "tensor", "L2", {"list": ["name-regex(Default/.+)", "Conv2D"]}, {}),
    (O2, "tensor", "L2", {"list": ["name-regex(Default/.+)", "Default/fc/MatMul-op0"]}, {}),
    (DYNAMIC, "statistics", "L2", {"list": ["MatMul"]}, {}),
    # data_mode
    ("pytorch", "statistics", "L1", {"data_mode": ["forward", "input", "output"]}, {}),
    (O0, "statistics", "L0", {"data_mode": ["forward"]}, {}),
    (O1, "statistics", "L2", {"data_mode": ["output"]}, {}),
    (DYNAMIC, "tensor", "L1", {"data_mode": ["forward", "input"]}, {}),
    # summary_mode
    ("pytorch", "tensor", "L1", {"summary_mode": "xor"}, {}),
    (DYNAMIC, "statistics", "L1", {"summary_mode": "md5"}, {}),
    (O0, "statistics", "L2", {"summary_mode": ["max", "min", "mean", "l2norm", *COUNTS, "hash", "md5"]}, {}),
    (O1, "statistics", "L2", {"summary_mode": "md5"}, {}),
    (O2, "statistics", "L2", {"summary_mode": ["max", "l2norm"]}, {}),
    (O0, "statistics", "L0", {"summary_mode": ["max", "min"]}, {}),
    (O0, "statistics", "L2", {"device": "device", "summary_mode": ["max", "min"]}, {}),
    # async_dump
    ("pytorch", "statistics", "L1", {}, {"async_dump": True}),
    ("pytorch", "statistics", "mix", {"summary_mode": "xor"}, {"async_dump": True}),
    ("pytorch", "tensor", "L1", {"list": ["relu"]}, {"async_dump": True}),
    ("pytorch", "tensor", "debug", {}, {"async_dump": True}),
    (O0, "statistics", "L2", {}, {"async_dump": True}),
    # the rest
    ("pytorch", "tensor", "L1", {"summary_mode": "md5", "bench_path": "earlier", "diff_nums": -1}, {}),
    ("pytorch", "acc_check", "L1", {"white_list": ["a"], "black_list": ["b"]}, {}),
    ("pytorch", "statistics", "L1", {}, {"dump_path": "with space/中文/c++"}),
    (O2, "tensor", "L2", {"file_format": "bin"}, {}),
]


@pytest.mark.parametrize(("framework", "task", "level", "section", "common"), VALID)
def test_valid_combination_is_taken_without_a_warning(load, framework, task, level, section, common):
    assert load(framework, task, level, section, **common).warnings == ()


# framework, task, level, section, common keys, refused paths
INVALID = [
    ("pytorch", "statistics", "L0", {"scope": API}, {}, ["statistics.scope[0]", "statistics.scope[1]"]),
    ("pytorch", "statistics", "L1", {"scope": [API[0], MODULES[0]]}, {}, ["statistics.scope[1]"]),
    ("pytorch", "tensor", "L2", {"scope": API, "list": ["a"]}, {}, ["tensor.scope"]),
    (O0, "statistics", "L2", {"scope": CELLS}, {}, ["statistics.scope"]),
    ("pytorch", "tensor", "L2", {}, {}, ["tensor.list"]),
    ("pytorch", "statistics", "L2", {"list": []}, {}, ["statistics.list"]),
    (O0, "tensor", "L0", {"list": ["a"]}, {}, ["tensor.list"]),
    (O0, "tensor", "L2", {"list": ["ok", "name-regex(a"]}, {}, ["tensor.list[1]"]),
    (O0, "tensor", "L2", {"list": ["name-regex([a)"]}, {}, ["tensor.list[0]"]),
    (O2, "tensor", "L2", {"list": ["MatMul"]}, {}, ["tensor.list[0]"]),
    (O0, "statistics", "L2", {"tensor_list": ["relu"]}, {}, ["statistics.tensor_list"]),
    ("pytorch", "statistics", "L2", {"list": ["a"], "tensor_list": ["a"]}, {}, ["statistics.tensor_list"]),
    (O0, "statistics", "L0", {"data_mode": ["input"]}, {}, ["statistics.data_mode"]),
    (O0, "statistics", "L0", {"data_mode": ["forward", "backward"]}, {}, ["statistics.data_mode"]),
    (O2, "tensor", "L2", {"data_mode": ["forward"]}, {}, ["tensor.data_mode"]),
    (DYNAMIC, "tensor", "L2", {"data_mode": ["input", "output"]}, {}, ["tensor.data_mode"]),
    ("pytorch", "statistics", "L1", {"summary_mode": ["max"]}, {}, ["statistics.summary_mode"]),
    (DYNAMIC, "statistics", "L1", {"summary_mode": "xor"}, {}, ["statistics.summary_mode"]),
    (DYNAMIC, "statistics", "L1", {"summary_mode": ["max"]}, {}, ["statistics.summary_mode"]),
    (O2, "statistics", "L2", {"summary_mode": ["max", "nan count"]}, {}, ["statistics.summary_mode"]),
    (O0, "statistics", "L2", {"summary_mode": "xor"}, {}, ["statistics.summary_mode"]),
    (O0, "statistics", "L0", {"summary_mode": "md5"}, {}, ["statistics.summary_mode"]),
    (O0, "statistics", "L0", {"summary_mode": ["max", "md5"]}, {}, ["statistics.summary_mode"]),
    ("pytorch", "tensor", "L1", {"summary_mode": ["max"]}, {}, ["tensor.summary_mode"]),
    (O0, "statistics", "L2", {"device": "device", "summary_mode": ["max", "nan count"]}, {}, ["statistics.device"]),
    ("pytorch", "tensor", "L1", {"bench_path": "earlier"}, {}, ["tensor.summary_mode"]),
    ("pytorch", "tensor", "L1", {"bench_path": "earlier", "summary_mode": "xor"}, {}, ["tensor.summary_mode"]),
    ("pytorch", "tensor", "L1", {}, {"async_dump": True}, ["tensor.list"]),
    ("pytorch", "statistics", "L1", {"summary_mode": "md5"}, {"async_dump": True}, ["statistics.summary_mode"]),
    ("pytorch", "structure", "mix", {}, {"async_dump": True}, ["async_dump"]),
    ("pytorch", "nan_check", "L1", {}, {"async_dump": True}, ["async_dump"]),
    ("pytorch", "statistics", "L2", {"list": ["a"]}, {"async_dump": True}, ["async_dump"]),
    (O2, "statistics", "L2", {}, {"async_dump": True}, ["async_dump"]),
    (O0, "statistics", "L2", {"summary_mode": ["max", "md5"]}, {"async_dump": True}, ["statistics.summary_mode"]),
    (
        "pytorch",
        "acc_check",
        "L1",
        {"white_list": ["a", "b"], "black_list": ["c", "b"]},
        {},
        ["acc_check.black_list[1]"],
    ),
    (O0, "statistics", "L0", {}, {"rank": [1]}, ["rank"]),
    (O0, "tensor", "L2", {}, {"dump_path": "/tmp/a.b"}, ["dump_path"]),
    (DYNAMIC, "tensor", "L2", {}, {"dump_path": "with space"}, ["dump_path"]),
]


@pytest.mark.parametrize(("framework", "task", "level", "section", "common", "paths"), INVALID)
def test_invalid_combination_names_the_key_to_change(load, framework, task, level, section, common, paths):
    with pytest.raises(ConfigError) as caught:
        load(framework, task, level, section, **common)
    assert [problem.path for problem in caught.value.problems] == paths


# framework, task, level, section, common keys, part of the warning
WITHOUT_EFFECT = [
    ("pytorch", "statistics", "L0", {"scope": [MODULES[0], CELLS[1]]}, {}, 'PyTorch modules are called "Module...."'),
    ("pytorch", "statistics", "L1", {"list": [MODULES[0]]}, {}, 'level "mix" takes it'),
    ("pytorch", "statistics", "L0", {"list": [API[0]]}, {}, 'level "mix" takes it'),
    ("pytorch", "statistics", "L1", {"list": ["name-regex(a.+)"]}, {}, "taken literally"),
    ("pytorch", "statistics", "debug", {"tensor_list": ["a"]}, {}, "statistics.tensor_list: no effect"),
    ("pytorch", "tensor", "L1", {"file_format": "npy"}, {}, "tensor.file_format"),
    (DYNAMIC, "tensor", "L1", {"file_format": "bin"}, {}, "tensor.file_format"),
    ("pytorch", "statistics", "L1", {"device": "device"}, {}, "statistics.device"),
    (O2, "statistics", "L2", {"device": "device"}, {}, "statistics.device"),
    (DYNAMIC, "tensor", "L1", {"bench_path": "x", "summary_mode": "md5"}, {}, "tensor.bench_path"),
    ("pytorch", "tensor", "L1", {"diff_nums": 2}, {}, "tensor.diff_nums"),
    (O0, "tensor", "L2", {"summary_mode": "md5"}, {}, "tensor.summary_mode"),
    ("pytorch", "structure", "mix", {}, {"precision": "high"}, "precision"),
    (O2, "statistics", "L2", {}, {"precision": "high"}, "precision"),
    ("pytorch", "structure", "mix", {}, {"extra_info": False}, "leaves nothing to write"),
    ("pytorch", "statistics", "L0", {}, {"risk_level": "ALL"}, "risk_level"),
    (DYNAMIC, "statistics", "L1", {}, {"risk_level": "CORE"}, "risk_level"),
    ("pytorch", "statistics", "L1", {"list": ["relu"]}, {"risk_level": "CORE"}, "risk_level"),
    ("pytorch", "statistics", "debug", {}, {"exact": True}, "exact"),
    (DYNAMIC, "statistics", "L1", {}, {"self_check": True}, "self_check"),
    (DYNAMIC, "statistics", "L1", {}, {"dump_enable": True}, "dump_enable"),
    (O0, "exception_dump", "L2", {}, {"step": [1]}, "step"),
]


@pytest.mark.parametrize(("framework", "task", "level", "section", "common", "text"), WITHOUT_EFFECT)
def test_setting_without_effect_is_taken_with_one_warning(load, framework, task, level, section, common, text):
    (warning,) = load(framework, task, level, section, **common).warnings
    assert text in warning


@pytest.mark.parametrize("level", ["L1", "L2", "debug"])
@pytest.mark.parametrize("framework", ["pytorch", DYNAMIC])
def test_structure_becomes_mix_with_a_warning(load, framework, level):
    config = load(framework, "structure", level)
    assert config.level == "mix"
    assert f'level "{level}" becomes "mix"' in config.warnings[0]


def test_structure_keeps_l0(load):
    assert load("pytorch", "structure", "L0").level == "L0"


def test_any_framework_takes_what_one_mode_takes(load):
    assert load("any", "statistics", "L2", {"summary_mode": ["max"]}).summary_mode == ("max",)
    assert load("mindspore", "statistics", "L0", {"data_mode": ["forward", "input"]}).warnings == ()


def test_listed_statistics_keep_the_order_of_the_file_and_lose_repeats(load):
    config = load(O0, "statistics", "L2", {"summary_mode": ["min", "max", "min"]})
    assert config.summary_mode == ("min", "max")


def test_sections_of_other_tasks_are_checked_but_not_used(tmp_path):
    path = tmp_path / "config.json"
    content = {"dump_path": "out", "statistics": {"list": ["a"]}, "tensor": {"list": ["b"], "summary_mode": "md5"}}
    path.write_text(json.dumps(content), encoding="utf-8")
    config = load_config(path)
    assert (config.list, config.summary_mode) == (("a",), "statistics")

    content["tensor"]["diff_nums"] = 0
    content["acc_check"] = {"white_list": ["x"], "black_list": ["x"]}
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert [problem.path for problem in caught.value.problems] == ["tensor.diff_nums", "acc_check.black_list[0]"]


def test_scope_of_another_task_need_not_fit_the_level(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"dump_path": "out", "tensor": {"scope": MODULES}}), encoding="utf-8")
    assert load_config(path).scope is None


def test_problems_of_values_and_of_combinations_come_together(load):
    with pytest.raises(ConfigError) as caught:
        load("pytorch", "tensor", "L1", {"data_mode": ["inn"], "scope": MODULES, "diff_nums": 0}, async_dump=True)
    paths = [problem.path for problem in caught.value.problems]
    assert paths == ["tensor.data_mode[0]", "tensor.diff_nums", "tensor.scope[0]", "tensor.scope[1]", "tensor.list"]


def test_a_refused_value_causes_no_second_problem(load):
    with pytest.raises(ConfigError) as caught:
        load("pytorch", "tensor", "L1", {"list": "relu"}, async_dump=True)
    assert [problem.path for problem in caught.value.problems] == ["tensor.list"]


ASYNC_REFUSALS = {
    "task": (
        ("pytorch", "structure", "mix", {}),
        'async_dump true: false with task "structure"; it works with "statistics" and "tensor"',
    ),
    "level": (
        ("pytorch", "statistics", "L2", {"list": ["a"]}),
        'async_dump true: false with level "L2" on PyTorch; it works with level "L0", "L1", "mix", "debug"',
    ),
    "no list": (
        ("pytorch", "tensor", "mix", {}),
        (
            "tensor.list []: with async_dump and task tensor: at least one name, since all tensors are held until the "
            'step ends; name what you need, or set "async_dump": false'
        ),
    ),
    "md5": (
        ("pytorch", "statistics", "L1", {"summary_mode": "md5"}),
        (
            'statistics.summary_mode "md5": anything but md5 while async_dump is true, e.g. "statistics"; '
            'or set "async_dump": false'
        ),
    ),
}


@pytest.mark.parametrize(("case", "text"), ASYNC_REFUSALS.values(), ids=ASYNC_REFUSALS)
def test_each_refusal_of_async_dump_has_its_own_words(load, case, text):
    with pytest.raises(ConfigError) as caught:
        load(*case, async_dump=True)
    (problem,) = caught.value.problems
    assert f"{problem.path} {json.dumps(problem.value)}: {problem.allowed}; {problem.hint}" == text
