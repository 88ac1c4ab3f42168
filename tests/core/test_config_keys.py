"""Every key of config.json: what it accepts, what it becomes, what it refuses and with which hint."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from msprobe.core.config_load import load_config
from msprobe.core.config_model import COMMON_KEYS, SECTIONS
from msprobe.core.config_record import Config, DataMode, Level, Task
from msprobe.core.errors import ConfigError

API = ["Tensor.add.0.forward", "Functional.square.2.forward"]
MODULES = ["Module.conv1.Conv2d.forward.0", "Module.fc2.Linear.backward.0"]
PAIR_OF_SECTION = {
    "statistics": {},
    "tensor": {},
    "nan_check": {},
    "acc_check": {},
    "overflow_check": {"level": "L2"},
}


@pytest.fixture
def load(tmp_path):
    path = tmp_path / "config.json"

    def run(content, framework="any", **keywords):
        path.write_text(json.dumps(content), encoding="utf-8")
        return load_config(path, framework=framework, **keywords)

    return run


def with_key(path, value, **more):
    """Return a valid file in which one key has a value; ``section.key`` makes the section's task the active one."""
    section, _, key = path.rpartition(".")
    if not section:
        return {"dump_path": "out", **more, key: value}
    return {"task": section, "dump_path": "out", **PAIR_OF_SECTION[section], **more, section: {key: value}}


def names(section):
    return [f"{section}.list", f"{section}.tensor_list"] if section != "tensor" else ["tensor.list"]


ACCEPTED = [
    *[("task", word, word) for word in ("statistics", "tensor", "acc_check", "nan_check", "structure")],
    ("task", "", "statistics"),
    ("task", None, "statistics"),
    *[("level", word, word) for word in ("L0", "L1", "mix", "debug")],
    ("level", "", "L1"),
    ("level", None, "L1"),
    ("dump_path", "./with space/中文/c++", Path("with space/中文/c++")),
    ("dump_path", "/abs", Path("/abs")),
    *[(key, [], frozenset()) for key in ("rank", "step")],
    *[(key, None, frozenset()) for key in ("rank", "step")],
    *[(key, [1, "4-6", "3", 1, " 8 - 9 "], frozenset({1, 3, 4, 5, 6, 8, 9})) for key in ("rank", "step")],
    *[(key, ["0-0"], frozenset({0})) for key in ("rank", "step")],
    ("step", [2_000_000], frozenset({2_000_000})),
    ("async_dump", True, True),
    ("async_dump", False, False),
    ("dump_enable", True, True),
    ("dump_enable", False, False),
    ("dump_enable", None, None),
    ("extra_info", False, False),
    ("precision", "high", "high"),
    *[(key, value, value) for key in ("exact", "self_check") for value in (True, False)],
    *[("risk_level", word, word) for word in ("ALL", "CORE", "FOCUS")],
    ("risk_level", "", "FOCUS"),
    ("risk_level", None, "FOCUS"),
    *[(f"{s}.scope", value, None) for s in ("statistics", "tensor", "nan_check") for value in ([], None)],
    *[(f"{s}.scope", API, tuple(API)) for s in ("statistics", "tensor", "nan_check")],
    *[(key, [], ()) for s in ("statistics", "tensor", "nan_check") for key in names(s)],
    *[
        (key, ["relu", "Torch.relu.3.backward"], ("relu", "Torch.relu.3.backward"))
        for s in ("statistics", "tensor", "nan_check")
        for key in names(s)
    ],
    ("statistics.data_mode", ["all"], DataMode()),
    ("statistics.data_mode", [], DataMode()),
    ("statistics.data_mode", None, DataMode()),
    ("statistics.data_mode", ["backward"], DataMode(forward=False)),
    ("statistics.data_mode", ["forward", "input"], DataMode(backward=False, output=False)),
    ("statistics.data_mode", ["input"], DataMode(output=False)),
    ("tensor.data_mode", ["output", "backward"], DataMode(forward=False, input=False)),
    ("statistics.data_mode", ["forward", "backward", "input", "output"], DataMode()),
    ("nan_check.data_mode", ["backward"], DataMode(forward=False)),
    ("nan_check.data_mode", ["input", "output"], DataMode()),
    *[
        (f"{s}.summary_mode", word, word)
        for s in ("statistics", "tensor")
        for word in ("statistics", "md5", "xor", "hash")
    ],
    *[(f"{s}.summary_mode", word, "statistics") for s in ("statistics", "tensor") for word in ("", None)],
    ("statistics.device", "device", "device"),
    ("statistics.device", None, "host"),
    ("tensor.file_format", "bin", "bin"),
    ("tensor.bench_path", None, None),
    ("tensor.diff_nums", 3, 3),
    ("tensor.diff_nums", -1, -1),
    ("acc_check.white_list", ["conv1d", "conv2d"], ("conv1d", "conv2d")),
    ("acc_check.black_list", ["conv1d"], ("conv1d",)),
    ("acc_check.error_data_path", "./failed", Path("failed")),
    *[("overflow_check.check_mode", word, word) for word in ("all", "aicore", "atomic")],
]

NOT_A_PATH = ["", 3, [], {}, True, "  ", "a\0b", "x" * 300, "\ud800"]
NOT_A_BOOLEAN = [0, 1, "true", "", [], {}]
NOT_A_SPAN = [-1, 1.0, 1.5, True, None, "a", "1-2-3", "6-4", "-1", "", [1], "1,2", "0-99999999", "٣"]
NOT_NAMES = ["", 3, None, True, "  ", ["relu"]]
NOT_A_FULL_NAME = [
    "relu",
    "",
    1,
    None,
    "Tensor.add.forward.0",
    "Module.fc.Linear.parameters_grad.0",
    "Tensor.add.0.forward#recompute",
    "Module.fc.Linear.0.forward",
]

# key path, value, index of the refused item or None when the whole value is refused
REFUSED = [
    *[("task", value, None) for value in ("tensors", "Tensor", 1, [], True)],
    *[("level", value, None) for value in ("l1", "L3", "MIX", 0, ["L1"])],
    *[("dump_path", value, None) for value in NOT_A_PATH if value != ""],
    *[(key, value, None) for key in ("rank", "step") for value in (3, "3", True, {}, "")],
    *[(key, [0, value], 1) for key in ("rank", "step") for value in NOT_A_SPAN],
    *[
        (key, value, None)
        for key in ("async_dump", "dump_enable", "extra_info", "exact", "self_check")
        for value in NOT_A_BOOLEAN
    ],
    *[(key, None, None) for key in ("async_dump", "extra_info", "precision", "exact", "self_check")],
    *[("precision", value, None) for value in ("High", "medium", 1, "")],
    *[("risk_level", value, None) for value in ("focus", "HIGH", 1)],
    *[
        (f"{s}.scope", value, None)
        for s in ("statistics", "tensor", "nan_check")
        for value in (API[:1], [*API, API[0]], API[0], {}, 1)
    ],
    *[(f"{s}.scope", [API[0], value], 1) for s in ("statistics", "tensor", "nan_check") for value in NOT_A_FULL_NAME],
    *[
        (key, value, None)
        for s in ("statistics", "tensor", "nan_check")
        for key in names(s)
        for value in ("relu", 1, {}, True)
    ],
    *[(key, ["a", value], 1) for s in ("statistics", "tensor", "nan_check") for key in names(s) for value in NOT_NAMES],
    *[
        (f"{s}.data_mode", value, None)
        for s in ("statistics", "tensor", "nan_check")
        for value in ("all", 1, {}, ["all", "input"])
    ],
    *[
        (f"{s}.data_mode", ["input", value], 1)
        for s in ("statistics", "tensor")
        for value in ("inputs", "ALL", 1, None)
    ],
    ("nan_check.data_mode", ["input"], None),
    ("nan_check.data_mode", ["forward", "input"], None),
    *[
        (f"{s}.summary_mode", value, None)
        for s in ("statistics", "tensor")
        for value in ("MD5", "crc", 1, True, {}, [], ["maxx"], ["max", 1])
    ],
    *[("statistics.device", value, None) for value in ("npu", "", 1)],
    *[("tensor.file_format", value, None) for value in ("pt", "", 1)],
    *[("tensor.bench_path", value, None) for value in NOT_A_PATH],
    *[("tensor.diff_nums", value, None) for value in (0, -2, "a", 1.0, True, None)],
    *[(key, value, None) for key in ("acc_check.white_list", "acc_check.black_list") for value in ("conv1d", 1, {})],
    *[(key, ["a", value], 1) for key in ("acc_check.white_list", "acc_check.black_list") for value in NOT_NAMES],
    *[("acc_check.error_data_path", value, None) for value in NOT_A_PATH],
    *[("overflow_check.check_mode", value, None) for value in ("ALL", "core", 1, "")],
    *[(section, value, None) for section in SECTIONS for value in (None, [], "all", 1)],
]


@pytest.mark.parametrize(("path", "value", "expected"), ACCEPTED)
def test_accepted_value_arrives_in_its_final_type(load, path, value, expected):
    config = load(with_key(path, value))
    result = getattr(config, path.rpartition(".")[2])
    assert result == expected
    assert type(result) is not list


@pytest.mark.parametrize(("path", "value", "index"), REFUSED)
def test_refused_value_is_named_with_its_path_and_what_is_allowed(load, path, value, index):
    with pytest.raises(ConfigError) as caught:
        load(with_key(path, value))
    (problem,) = caught.value.problems
    assert problem.path == (path if index is None else f"{path}[{index}]")
    assert problem.value == (value if index is None else value[index])
    assert problem.allowed
    assert problem.line == 1
    assert problem.allowed in str(caught.value)
    str(caught.value).encode()  # printable on any terminal, whatever the file held


def test_defaults_are_those_of_the_reference(load):
    assert load({"dump_path": "out"}) == Config(task=Task.STATISTICS, level=Level.L1, dump_path=Path("out"))


def test_every_key_has_an_accepted_and_a_refused_case():
    every_key = {*COMMON_KEYS, *(f"{name}.{key}" for name, model in SECTIONS.items() for key in model.model_fields)}
    assert every_key == {path for path, _, _ in ACCEPTED}
    assert every_key - {path for path, _, _ in REFUSED} == set()


HINTS = [
    ("task", "tensors", 'did you mean "tensor"?'),
    ("task", "Statistic", 'did you mean "statistics"?'),
    ("level", "l1", 'did you mean "L1"?'),
    ("level", "Mix", 'did you mean "mix"?'),
    ("risk_level", "focus", 'did you mean "FOCUS"?'),
    ("async_dump", "true", "write true, without quotes"),
    ("extra_info", 0, "write false, without quotes"),
    ("rank", 3, "write [3]"),
    ("step", "0-3", 'write ["0-3"]'),
    ("step", ["6-4"], 'did you mean "4-6"?'),
    ("step", [2.0], "write 2"),
    ("statistics.list", "relu", 'write ["relu"]'),
    ("statistics.list", [7], 'write "7"'),
    ("statistics.scope", ["Tensor.add.forward.0"] * 2, 'did you mean "Tensor.add.0.forward"?'),
    ("statistics.scope", ["Module.fc.Linear.0.forward"] * 2, 'did you mean "Module.fc.Linear.forward.0"?'),
    ("statistics.scope", ["Module.fc.Linear"] * 2, 'e.g. "Module.fc.Linear.forward.0"'),
    ("statistics.scope", ["Torch.relu"] * 2, 'e.g. "Torch.relu.0.forward"'),
    ("statistics.scope", ["Torch.relu.0.forward#recompute"] * 2, 'did you mean "Torch.relu.0.forward"?'),
    ("statistics.scope", ["relu"] * 2, 'use "list"'),
    ("statistics.data_mode", "all", 'write ["all"]'),
    ("statistics.data_mode", ["all", "input"], 'write ["all"] or ["input"]'),
    ("statistics.data_mode", ["inputs"], 'did you mean "input"?'),
    ("nan_check.data_mode", ["input"], 'add "output" to the list'),
    ("statistics.summary_mode", "MD5", 'did you mean "md5"?'),
    ("statistics.summary_mode", ["avg", "mx"], '"avg" did you mean "mean"?; "mx" did you mean "max"?'),
    ("tensor.file_format", "NPY", 'did you mean "npy"?'),
    ("overflow_check.check_mode", "ai_core", 'did you mean "aicore"?'),
]


@pytest.mark.parametrize(("path", "value", "hint"), HINTS)
def test_hint_says_what_to_write_instead(load, path, value, hint):
    with pytest.raises(ConfigError) as caught:
        load(with_key(path, value))
    assert hint in caught.value.problems[0].hint


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["all", "md5", "L2", "4-6"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["list", "scope", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)
ANY_FILE = st.fixed_dictionaries(
    {"dump_path": st.just("out")},
    optional={key: ANY_JSON for key in (*COMMON_KEYS, *SECTIONS) if key != "dump_path"},
)


def outcome_of(load, content, framework):
    try:
        return load(content, framework)
    except ConfigError as error:
        return error


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ANY_FILE, st.sampled_from(["pytorch", "mindspore", "any"]))
def test_whatever_the_file_holds_it_is_taken_or_refused_with_a_config_error(load, content, framework):
    outcome = outcome_of(load, content, framework)
    assert isinstance(outcome, Config) or outcome.problems
    str(outcome).encode()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(0, 200), max_size=5), st.lists(st.tuples(st.integers(0, 99), st.integers(0, 20)), max_size=4)
)
def test_rank_and_step_hold_exactly_the_named_numbers(load, numbers, ranges):
    items = [*numbers, *(f"{first}-{first + more}" for first, more in ranges)]
    expected = set(numbers).union(*(range(first, first + more + 1) for first, more in ranges))
    config = load({"dump_path": "out", "rank": items, "step": items})
    assert config.rank == config.step == expected
