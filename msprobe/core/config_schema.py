"""config.json as JSON Schema, so that an editor completes keys and marks mistakes while one types.

What single values may be is written here, beside the checks of :mod:`msprobe.core.config_values` and used by the same
model; the document is put together from the model. What keys demand of each other is for ``msprobe config check``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args

from pydantic import WithJsonSchema

from msprobe.core.config_record import SummaryMode, Word
from msprobe.core.config_values import DATA_MODES, STATISTIC_NAMES

if TYPE_CHECKING:
    from msprobe.core.config_model import Section

Schema = dict[str, Any]

SCHEMA_KEY = "$schema"
"""Key by which a file names its schema; of no meaning to msprobe."""

_DIALECT = "http://json-schema.org/draft-07/schema#"  # what editors understand


def one_of(words: type[Word]) -> Schema:
    """Exactly one word of an enumeration."""
    return {"enum": [word.value for word in words]}


def _list_of(item: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": item, **more}


BOOLEAN: Schema = {"type": "boolean"}
TEXT: Schema = {"type": "string", "pattern": r"\S"}
NAMES: Schema = _list_of(TEXT)
SPANS: Schema = _list_of(
    {
        "anyOf": [
            {"type": "integer", "minimum": 0},
            {"type": "string", "pattern": r"^\s*[0-9]+\s*(-\s*[0-9]+\s*)?$"},
        ]
    }
)
_FULL_NAME: Schema = {
    "type": "string",
    "pattern": (
        r"^(?!(Module|Cell)\.)[^.#]+\.[^#]+\.[0-9]+\.(forward|backward)$"
        r"|^(Module|Cell)\.[^#]+\.(forward|backward)\.[0-9]+$"
    ),
}
TWO_NAMES: Schema = _list_of(_FULL_NAME, anyOf=[{"maxItems": 0}, {"minItems": 2, "maxItems": 2}])
DATA_MODE: Schema = {
    "type": "array",
    "items": {"enum": list(DATA_MODES)},
    "if": {"contains": {"const": "all"}},
    "then": {"maxItems": 1},
}
DATA_MODE_WITH_OUTPUT: Schema = {
    "allOf": [DATA_MODE, {"if": {"contains": {"const": "input"}}, "then": {"contains": {"const": "output"}}}]
}
SUMMARY_MODE: Schema = {
    "anyOf": [one_of(SummaryMode), _list_of({"enum": list(STATISTIC_NAMES)}, minItems=1)],
}
DIFFERENCE_COUNT: Schema = {"type": "integer", "anyOf": [{"minimum": 1}, {"const": -1}]}


def schema_text() -> str:
    """The schema as the text of ``config.schema.json``."""
    return json.dumps(config_schema(), indent=2, ensure_ascii=False) + "\n"


def config_schema() -> Schema:
    """The schema of the whole file, put together from the model."""
    from msprobe.core.config_model import SECTIONS, ConfigFile  # noqa: PLC0415 - the model uses what is above

    properties: Schema = {SCHEMA_KEY: {"type": "string", "description": "where this schema is; not read by msprobe"}}
    for key in ConfigFile.model_fields:
        if key in SECTIONS:
            description = {"description": f'keys of task "{key}"'}
            section = SECTIONS[key]
            properties[key] = description | _object({name: _property(section, name) for name in section.model_fields})
        else:
            properties[key] = _property(ConfigFile, key)
    head = {SCHEMA_KEY: _DIALECT, "title": "msprobe config.json"}
    return {**head, **_object(properties), "required": ["dump_path"]}


def _object(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _property(model: type[Section], key: str) -> Schema:
    """One key. Where the loader takes null or "" for the default, so does the schema."""
    field = model.model_fields[key]
    choices = [_declared(field.annotation, field.metadata)]
    if key in model.empty_is_default and key != "dump_path":
        choices.append({"const": ""})
    if key not in model.null_refused and key != "dump_path":
        choices.append({"type": "null"})
    value = choices[0] if len(choices) == 1 else {"anyOf": choices}
    default = {} if field.default is None else {"default": field.default}
    return {"description": field.description, **default, **value}


def _declared(annotation: Any, metadata: Sequence[object]) -> Schema:
    """The schema that the model gives for a type; of ``X | None`` that of X."""
    for item in reversed(metadata):
        if isinstance(item, WithJsonSchema):
            return item.json_schema or {}
    first = get_args(annotation)[0]
    return _declared(get_args(first)[0], first.__metadata__)
