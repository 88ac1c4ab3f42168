"""One error text tells an engineer what to change: positions, notes, sources, unreadable files."""

import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msprobe.core.config_json import find_places, parse_config_text
from msprobe.core.config_load import PACKAGED_CONFIG, load_config
from msprobe.core.errors import NOT_SET, ConfigError, LifecycleError, MsprobeError, Problem, show_value


@pytest.fixture
def config_file(tmp_path):
    def write(text):
        path = tmp_path / "config.json"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def refusal_of(path, **keywords):
    with pytest.raises(ConfigError) as caught:
        load_config(path, **keywords)
    return caught.value


def test_error_text_has_number_path_place_value_allowed_and_hint(config_file):
    path = config_file(
        '{\n  "dump_path": "out",\n  "level": "l1",\n  "statistics": {"scope": ["Tensor.add.0.forward", "relu"]}\n}'
    )
    error = refusal_of(path)
    assert str(error) == (
        f"config file {path}: 2 problems\n"
        '1. level (line 3, column 12) = "l1"\n'
        '    allowed: one of "L0", "L1", "L2", "mix", "debug"\n'
        '    hint: did you mean "L1"?\n'
        '2. statistics.scope[1] (line 4, column 52) = "relu"\n'
        '    allowed: a full record name: API "Prefix.name.N.forward|backward" '
        'or module "Module|Cell.path.Class.forward|backward.N"\n'
        '    hint: dump.json of an earlier run lists full names; to select by part of a name use "list"'
    )
    assert isinstance(error, ValueError)


def test_unknown_keys_are_one_warning_with_place_and_meaning(config_file):
    path = config_file(
        '{"dump_path": "out",\n"lvl": "L1", "summary_mode": "md5",\n"statistics": {"scop": [], "level": 1, "zzz": 0}}'
    )
    (warning,) = load_config(path).warnings
    assert warning == (
        'unknown keys are ignored: "lvl" (line 2, did you mean "level"?); '
        '"summary_mode" (line 2, it belongs in section "statistics" or "tensor"); '
        '"statistics.scop" (line 3, did you mean "scope"?); '
        '"statistics.level" (line 3, it belongs at the top level); "statistics.zzz" (line 3)'
    )


def test_misspelt_required_key_is_explained_in_the_error(config_file):
    error = refusal_of(config_file('{"dump_pth": "out"}'))
    assert error.problems[0].value is NOT_SET
    assert "dump_path (" not in str(error)
    assert 'did you mean "dump_path"?' in str(error)


@pytest.mark.parametrize("text", ["{}", '{"dump_path": ""}', '{"dump_path": null}'])
def test_missing_dump_path_is_refused(config_file, text):
    (problem,) = refusal_of(config_file(text)).problems
    assert (problem.path, problem.value) == ("dump_path", NOT_SET)


def test_without_a_file_the_packaged_default_is_used_and_named():
    text = str(refusal_of(None))
    assert str(PACKAGED_CONFIG) in text
    assert "pass config_path or dump_path to PrecisionDebugger" in text
    config = load_config(None, dump_path="out")
    assert (config.task, config.level, config.warnings) == ("statistics", "L1", ())


def test_duplicate_key_is_warned_about(config_file):
    config = load_config(config_file('{"dump_path": "out", "level": "L0", "level": "mix"}'))
    assert config.level == "mix"
    assert config.warnings == ('"level" stands more than once: the last one counts',)


def test_keyword_arguments_beat_the_file_and_are_named_as_such(config_file, tmp_path):
    path = config_file('{"dump_path": 1, "level": "nonsense", "task": 3, "step": "x"}')
    config = load_config(path, task="tensor", level="mix", dump_path=tmp_path / "out", step=(1, "3-4"))
    assert (config.task, config.level, config.dump_path, config.step) == ("tensor", "mix", tmp_path / "out", {1, 3, 4})
    assert load_config(path, task="tensor", level="mix", dump_path="o", step=range(2)).step == {0, 1}
    text = str(refusal_of(path, task="tensr", level="L9", dump_path=b"out", step=3))
    for key in ("task", "level", "dump_path", "step"):
        assert f"{key} (keyword argument) = " in text


def test_value_that_is_refused_though_only_the_default_says_so(config_file):
    text = str(refusal_of(config_file('{"dump_path": "out", "task": "overflow_check"}'), framework="mindspore"))
    assert 'level (default) = "L1"' in text


SYNTAX = [
    ('{"dump_path": "out",}', (1, None), "delete the comma before the closing bracket"),
    ('{"rank": [1, 2,]}', (1, None), "delete the comma before the closing bracket"),
    ('{"a": 1,\n // note\n "b": 2}', (2, 2), "JSON has no comments"),
    ('{"a": 1 # note\n}', (1, 9), "JSON has no comments"),
    ("{'a': 1}", (1, 2), "double quotes"),
    ('{"a": True}', (1, 7), "lower case"),
    ('{"a": 1\n "b": 2}', (2, 2), "a comma is missing"),
    ('{"a": [1, 2}', (1, 12), ""),
    ('{"a": 1', (1, 8), "ends too early"),
    ('{"a": "x', (1, 7), "closing quote"),
    ('{"a": "C:\\dump"}', (1, 10), "backslash"),
    ('{"a": "x\ny"}', (1, 9), "closing quote missing"),
    ('{"a": 1}}', (1, 9), "delete what follows"),
    ('{"a": ,}', (1, 7), "a value is missing after the colon"),
    ('{"a": [1,,2]}', (1, 10), "a comma too many"),
    ("", (1, 1), "the file is empty"),
]


@pytest.mark.parametrize(("text", "place", "hint"), SYNTAX)
def test_syntax_error_has_its_place_and_the_usual_cause(config_file, text, place, hint):
    (problem,) = refusal_of(config_file(text)).problems
    assert problem.path == "(JSON syntax)"
    assert problem.line == place[0]
    # Python versions differ by one token in where they put a trailing comma.
    assert place[1] is None or problem.column == place[1]
    assert hint in problem.hint


@pytest.mark.parametrize("text", ["[]", '"text"', "3", "null", "true"])
def test_top_level_that_is_no_object_is_refused(config_file, text):
    assert refusal_of(config_file(text)).problems[0].path == "(top level)"


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": ' + "9" * 5000 + "}"], ids=["deep nesting", "huge number"])
def test_extreme_json_is_refused_not_crashed_on(config_file, text):
    assert refusal_of(config_file(text)).problems[0].path.startswith("(JSON")


def test_deeply_nested_unknown_key_is_still_only_a_warning(config_file):
    depth = sys.getrecursionlimit() // 3
    config = load_config(config_file('{"dump_path": "out", "x": ' + "[" * depth + "]" * depth + "}"))
    assert '"x"' in config.warnings[0]


def test_byte_order_mark_and_chinese_text_are_read(config_file):
    assert load_config(config_file(b"\xef\xbb\xbf" + '{"dump_path": "数据"}'.encode())).dump_path == Path("数据")


def test_other_encodings_are_named_with_place(config_file):
    (problem,) = refusal_of(config_file('{\n"dump_path": "数据"}'.encode("gbk"))).problems
    assert (problem.path, problem.line, problem.column) == ("(encoding)", 2, 15)


def test_missing_file_and_folder_are_refused_by_name(tmp_path):
    assert "No such file" in str(refusal_of(tmp_path / "none.json"))
    assert "give the path of the JSON file itself" in str(refusal_of(tmp_path))
    for wrong in (3, "", b"x", ["config.json"]):
        assert refusal_of(wrong).problems[0].path == "config_path"


def test_unknown_framework_is_refused(config_file):
    with pytest.raises(ConfigError, match='"pytorch", "mindspore"'):
        load_config(config_file('{"dump_path": "out"}'), framework="torch")


def test_errors_survive_pickling_between_processes(config_file):
    error = refusal_of(config_file('{"level": "l1", "x": 1}'))
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error)
    assert copy.problems == error.problems
    assert copy.problems[-1].value is NOT_SET


def test_every_error_class_is_a_value_error_of_ours():
    assert issubclass(ConfigError, (MsprobeError, ValueError))
    assert issubclass(LifecycleError, (MsprobeError, ValueError))


def test_shown_values_are_short_and_printable():
    assert show_value("中文") == '"中文"'
    assert len(show_value(["x"] * 1000)) == 80
    assert show_value("\ud800") == "'\\ud800'"
    assert show_value({1, 2}) == "{1, 2}"
    assert "is not set" in str(Problem("dump_path", NOT_SET, "a path"))


def plain_paths(value, path=""):
    yield path, value
    if isinstance(value, dict):
        for key, item in value.items():
            yield from plain_paths(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from plain_paths(item, f"{path}[{index}]")


KEYS = st.text("abcXYZ中_", min_size=1, max_size=4)
NESTED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(st.dictionaries(KEYS, NESTED, max_size=4), st.sampled_from([None, 2, "\t"]), st.booleans())
def test_places_point_at_the_values_for_any_json(data, indent, ascii_only):
    text = json.dumps(data, indent=indent, ensure_ascii=ascii_only)
    assert parse_config_text(text, "text").data == data
    expected = dict(plain_paths(data))
    places = find_places(text, expected)
    assert places.keys() == expected.keys()
    lines = text.split("\n")
    for path, (line, column) in places.items():
        rest = "\n".join([lines[line - 1][column - 1 :], *lines[line:]])
        assert json.JSONDecoder().raw_decode(rest)[0] == expected[path]


def best_of_three(call):
    durations = []
    for _ in range(3):
        started = time.perf_counter()
        call()
        durations.append(time.perf_counter() - started)
    return min(durations)


def test_loading_takes_less_than_50_ms(config_file):
    good = config_file(json.dumps({"dump_path": "out", "rank": ["0-1023"], "statistics": {"list": ["a"] * 200}}))
    assert best_of_three(lambda: load_config(good)) < 0.05
    bad = config_file(json.dumps({"level": 1, "statistics": {"list": [1] * 200}}, indent=1))
    assert best_of_three(lambda: refusal_of(bad)) < 0.05


@pytest.mark.parametrize("module", ["msprobe", "msprobe.core.config_load", "msprobe.core.support", "msprobe.cli"])
def test_import_loads_no_framework(module):
    code = (
        f"import sys, {module}\n"
        "heavy = {'torch', 'mindspore', 'numpy', 'triton', 'transformers'} & sys.modules.keys()\n"
        "raise SystemExit(','.join(heavy) or 0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ), check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
