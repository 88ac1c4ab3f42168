"""Every key with its default, a valid and an invalid value and a combination; every kind of message, word for word.

The table is config_table.json. It also holds the JSON Schema to what the loader takes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from msprobe.core.config_load import PACKAGED_CONFIG, load_config, resolve
from msprobe.core.config_model import COMMON_KEYS, SECTIONS
from msprobe.core.config_rules import RULES, judge
from msprobe.core.config_schema import config_schema, schema_text
from msprobe.core.config_source import SCHEMA_FILE, ConfigSource
from msprobe.core.errors import ConfigError

TABLE = json.loads((Path(__file__).parent / "config_table.json").read_text(encoding="utf-8"))
ROWS: list[dict[str, Any]] = TABLE["keys"]
REFUSED: list[dict[str, Any]] = TABLE["refused"]
WARNED: list[dict[str, Any]] = TABLE["accepted with a warning"]
BY_KEY = pytest.mark.parametrize("row", ROWS, ids=[row["key"] for row in ROWS])


def value_of(row: dict[str, Any], name: str) -> Any:
    return "x" * 300 if row[name] == "LONG" else row[name]


def with_key(key: str, value: Any) -> dict[str, Any]:
    """A file in which one key has a value; ``section.key`` makes the section's task the active one."""
    section, _, name = key.rpartition(".")
    if not section:
        return {"dump_path": "out", name: value}
    level = {"level": "L2"} if section == "overflow_check" else {}
    return {"dump_path": "out", "task": section, **level, section: {name: value}}


@pytest.fixture
def messages(tmp_path: Path) -> Any:
    """What loading a file says: the lines of its error without the first, or its warnings."""

    def load(content: dict[str, Any] | str, framework: str = "any") -> list[str]:
        path = tmp_path / "config.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        try:
            return list(load_config(path, framework=framework).warnings)
        except ConfigError as error:
            text = str(error)
        return text.removeprefix(f"config file {path}: ").replace(str(path), "FILE").split("\n")

    return load


def test_the_table_has_every_key() -> None:
    keys = [*COMMON_KEYS, *(f"{name}.{key}" for name, model in SECTIONS.items() for key in model.model_fields)]
    assert sorted(row["key"] for row in ROWS) == sorted(keys)


@BY_KEY
def test_default_is_what_an_absent_key_means(row: dict[str, Any]) -> None:
    if row["key"] == "dump_path":
        with pytest.raises(ConfigError):
            config_of({})
        return
    absent = with_key(row["key"], None)
    holder = absent[row["key"].split(".")[0]] if "." in row["key"] else absent
    holder.pop(row["key"].rpartition(".")[2])
    spelt = with_key(row["key"], row["default"])
    assert config_of(absent) == config_of(spelt)


def config_of(content: dict[str, Any]) -> Any:
    config = resolve(ConfigSource("file", content, json.dumps(content), ()), "any", {})
    return {name: getattr(config, name) for name in config.__slots__ if name != "warnings"}


@BY_KEY
def test_valid_value_counts(row: dict[str, Any]) -> None:
    content = with_key(row["key"], row["valid"])
    if row["key"] == "tensor.scope":
        content["level"] = "mix"
    name = row["key"].rpartition(".")[2]
    changed = {**content, "dump_path": "elsewhere"} if name == "dump_path" else with_key(row["key"], row["default"])
    assert config_of(content)[name] != config_of(changed)[name]


@BY_KEY
def test_invalid_value_is_refused_word_for_word(row: dict[str, Any], messages: Any) -> None:
    assert messages(with_key(row["key"], value_of(row, "invalid"))) == ["1 problem", *row["refusal"]]


@BY_KEY
def test_combination_is_judged_word_for_word(row: dict[str, Any], messages: Any) -> None:
    found = messages({"dump_path": "out", **row["combination"]}, row["framework"])
    assert found == (["1 problem", *row["outcome"]] if row["outcome"][0].startswith("1. ") else row["outcome"])


@pytest.mark.parametrize("case", [*REFUSED, *WARNED], ids=lambda case: case["kind"])
def test_every_further_kind_of_message_word_for_word(case: dict[str, Any], messages: Any) -> None:
    assert messages(case["file"], case["framework"]) == case["text"]


def test_every_rule_about_combinations_speaks_up_in_the_table(monkeypatch: pytest.MonkeyPatch, messages: Any) -> None:
    spoken: set[Any] = set()

    def listening(view: Any, broken: Any = frozenset()) -> Any:
        spoken.update(rule.check for rule in RULES if not broken.intersection(rule.needs) and list(rule.check(view)))
        return judge(view, broken)

    monkeypatch.setattr("msprobe.core.config_load.judge", listening)
    for row in ROWS:
        messages({"dump_path": "out", **row["combination"]}, row["framework"])
    for case in (*REFUSED, *WARNED):
        messages(case["file"], case["framework"])
    assert spoken == {rule.check for rule in RULES}


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Folder with a short name: a long one, as pytest's can be, is cut in a message."""
    with TemporaryDirectory() as folder:
        yield Path(folder)


def test_files_that_cannot_be_read_word_for_word(short_path: Path) -> None:
    def text_of(path: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            load_config(path)
        return str(caught.value).replace(str(short_path), "DIR").replace(str(PACKAGED_CONFIG), "PACKAGED")

    (short_path / "latin.json").write_bytes(b'{\n"dump_path": "\xe4"}')
    assert text_of(short_path / "none.json") == (
        'config file DIR/none.json: 1 problem\n1. config_path = "DIR/none.json"\n'
        "    allowed: a readable JSON file (No such file or directory)\n    hint: `msprobe config new` writes one"
    )
    assert text_of(short_path) == (
        'config file DIR: 1 problem\n1. config_path = "DIR"\n'
        "    allowed: a readable JSON file (Is a directory)\n    hint: give the path of the JSON file itself"
    )
    assert text_of(short_path / "latin.json") == (
        'config file DIR/latin.json: 1 problem\n1. (encoding) (line 2, column 15) = "byte 0xe4"\n'
        "    allowed: text in UTF-8\n    hint: save the file with encoding UTF-8"
    )
    assert text_of("") == (
        'configuration: 1 problem\n1. config_path (argument) = ""\n'
        "    allowed: the path of a JSON file, or None for the default"
    )
    assert text_of(None) == (
        "the default config file PACKAGED: 1 problem\n1. dump_path (line 3, column 18) is not set\n"
        "    allowed: a non-empty path in double quotes (required)\n"
        "    hint: pass config_path or dump_path to PrecisionDebugger, or "
        'add "dump_path": "./msprobe_dump" to the default config file PACKAGED'
    )


# -- JSON Schema


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value is valid by the words of JSON Schema that ours uses."""
    unknown = schema.keys() - {*CHECKS, "description", "default", "title", "$schema", "then", "additionalProperties"}
    assert not unknown, unknown
    return all(CHECKS[word](value, limit, schema) for word, limit in schema.items() if word in CHECKS)


def is_kind(value: Any, kind: str) -> bool:
    types = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool, "null": type(None)}
    return isinstance(value, types[kind]) and (kind == "boolean" or not isinstance(value, bool))


def fits_object(value: Any, properties: dict[str, Any], schema: dict[str, Any]) -> bool:
    if not isinstance(value, dict):
        return True
    known = schema["additionalProperties"] or value.keys() <= properties.keys()
    return known and all(fits(item, properties[key]) for key, item in value.items() if key in properties)


def same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and bool(value == other)


CHECKS: dict[str, Any] = {
    "type": lambda value, kind, _: is_kind(value, kind),
    "enum": lambda value, words, _: any(same(value, word) for word in words),
    "const": lambda value, word, _: same(value, word),
    "minimum": lambda value, least, _: not is_kind(value, "integer") or value >= least,
    "pattern": lambda value, pattern, _: not isinstance(value, str) or re.search(pattern, value, re.ASCII) is not None,
    "items": lambda value, each, _: not isinstance(value, list) or all(fits(item, each) for item in value),
    "minItems": lambda value, least, _: not isinstance(value, list) or len(value) >= least,
    "maxItems": lambda value, most, _: not isinstance(value, list) or len(value) <= most,
    "contains": lambda value, one, _: isinstance(value, list) and any(fits(item, one) for item in value),
    "anyOf": lambda value, choices, _: any(fits(value, choice) for choice in choices),
    "allOf": lambda value, parts, _: all(fits(value, part) for part in parts),
    "if": lambda value, when, schema: not fits(value, when) or fits(value, schema["then"]),
    "required": lambda value, keys, _: not isinstance(value, dict) or set(keys) <= value.keys(),
    "properties": fits_object,
}


def test_the_shipped_schema_and_the_document_are_those_of_the_model(pytestconfig: pytest.Config) -> None:
    for path in (SCHEMA_FILE, pytestconfig.rootpath / "docs" / "config.schema.json"):
        assert path.read_text(encoding="utf-8") == schema_text(), f"msprobe config schema > {path}"


def test_the_schema_has_every_key_with_its_meaning_and_default() -> None:
    properties = config_schema()["properties"]
    assert list(properties) == ["$schema", *COMMON_KEYS, *SECTIONS]
    for row in ROWS:
        section, _, key = row["key"].rpartition(".")
        entry = (properties[section]["properties"] if section else properties)[key]
        assert entry["description"]
        assert entry.get("default") == row["default"]


@BY_KEY
def test_the_schema_takes_what_the_loader_takes_and_refuses_what_it_refuses(row: dict[str, Any]) -> None:
    schema = config_schema()
    key = row["key"]
    assert fits(with_key(key, row["valid"]), schema)
    assert row["default"] is None or fits(with_key(key, row["default"]), schema)
    # Only the tool looks at the order of a range and at what a file system takes.
    beyond = key in ("rank", "dump_path", "acc_check.error_data_path")
    assert fits(with_key(key, value_of(row, "invalid")), schema) is beyond
    if key == "dump_path":
        return
    for value in (None, "", 0, [], {}, True, [0], [""], ["all"]):
        content = with_key(key, value)
        try:
            resolve(ConfigSource("file", content, json.dumps(content), ()), "any", {})
        except ConfigError as error:
            taken = not any(problem.path.startswith(key) for problem in error.problems)
        else:
            taken = True
        assert fits(content, schema) is taken, value


def test_the_schema_knows_files_that_name_it_and_marks_unknown_keys(pytestconfig: pytest.Config) -> None:
    schema = config_schema()
    assert fits({"$schema": "./config.schema.json", "dump_path": "out"}, schema)
    assert not fits({"dump_path": "out", "levle": "L1"}, schema)
    assert not fits({"level": "L1"}, schema)
    examples = (pytestconfig.rootpath / "docs" / "config.md").read_text(encoding="utf-8").split("```json\n")[1:]
    assert all(fits(json.loads(example.partition("```")[0]), schema) for example in examples)


def test_a_file_may_name_its_schema(messages: Any) -> None:
    assert messages({"$schema": "file:///any/where.json", "dump_path": "out"}, "pytorch") == []
    assert "did you mean" in messages({"$shema": "x", "levels": 1, "dump_path": "out"}, "pytorch")[0]
