"""The configuration file as a source: what it holds, where each value stands, and which of its keys nobody reads."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from msprobe.core.config_json import find_places, read_config_text
from msprobe.core.config_model import COMMON_KEYS, SECTIONS, ConfigFile
from msprobe.core.config_record import Task
from msprobe.core.config_schema import SCHEMA_KEY
from msprobe.core.config_values import closest, quoted
from msprobe.core.errors import NOT_SET, ConfigError, Problem

PACKAGED_CONFIG = Path(__file__).resolve().parents[1] / "config.json"
"""The configuration used when none is given."""
_MOST_NAMED = 50
"""Keys listed in one message."""
SCHEMA_FILE = PACKAGED_CONFIG.with_name("config.schema.json")
"""JSON Schema of a configuration file, for editors."""


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """A configuration file, read once.

    Attributes
    ----------
    name : str
        How messages call it.
    data : mapping
        The top-level object.
    text : str
        What was parsed; places are looked up in it.
    duplicates : tuple of str
        Keys that stand twice in one object.
    """

    name: str
    data: Mapping[str, object]
    text: str
    duplicates: tuple[str, ...]

    @classmethod
    def read(cls, path: str | os.PathLike[str] | None) -> ConfigSource:
        """Read a file, or the packaged default for None.

        Raises
        ------
        ConfigError
            If the file cannot be read or is not a JSON object.
        """
        if path is None:
            content = read_config_text(PACKAGED_CONFIG)
            return cls(f"the default config file {PACKAGED_CONFIG}", *content)
        if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
            problem = Problem(
                "config_path", path, "the path of a JSON file, or None for the default", origin="argument"
            )
            raise ConfigError([problem])
        return cls(f"config file {os.fspath(path)}", *read_config_text(Path(path)))

    @property
    def packaged(self) -> bool:
        """Whether this is the default that came with the package."""
        return self.name.endswith(str(PACKAGED_CONFIG))

    def locate(self, problems: Sequence[Problem], keywords: Mapping[str, object]) -> list[Problem]:
        """Add to each problem where its value came from: a place in the file, a keyword argument or the default."""
        places = find_places(self.text, {problem.path for problem in problems})
        located = []
        for problem in problems:
            top_key = problem.path.split(".")[0].split("[")[0]
            if top_key in keywords:
                located.append(replace(problem, origin="keyword argument"))
            elif problem.path in places:
                line, column = places[problem.path]
                located.append(replace(problem, line=line, column=column))
            else:
                located.append(problem if problem.value is NOT_SET else replace(problem, origin="default"))
        return located


def unknown_key_warnings(raw: ConfigFile, source: ConfigSource) -> list[str]:
    """Return one warning that names every key nobody reads, each with its line and the key that was meant."""
    unknown: list[tuple[str, str | None]] = [(key, None) for key in raw.model_extra or {} if key != SCHEMA_KEY]
    for name in SECTIONS:
        unknown += [(key, name) for key in raw.section(Task(name)).model_extra or {}]
    if not unknown:
        return []
    guesses = {
        key if section is None else f"{section}.{key}": _guess(key, section) for key, section in unknown[:_MOST_NAMED]
    }
    places = find_places(source.text, guesses)
    remarks = []
    for path, guess in guesses.items():
        line = f"line {places[path][0]}" if path in places else ""
        details = ", ".join(filter(None, (line, guess)))
        remarks.append(f'"{path}" ({details})' if details else f'"{path}"')
    if len(unknown) > _MOST_NAMED:
        remarks.append(f"and {len(unknown) - _MOST_NAMED} more")
    return [f"unknown keys are ignored: {'; '.join(remarks)}"]


def _guess(key: str, section: str | None) -> str:
    """Say which key was meant: one that belongs elsewhere, or the most similar one here."""
    if section is not None and key in COMMON_KEYS:
        return "it belongs at the top level"
    owners = [name for name, model in SECTIONS.items() if key in model.model_fields]
    if owners:
        return f"it belongs in section {' or '.join(quoted([owner]) for owner in owners)}"
    if section is None:
        return closest(key, (*COMMON_KEYS, *SECTIONS))
    guess = closest(key, SECTIONS[section].model_fields)
    if not guess and (elsewhere := closest(key, COMMON_KEYS)):
        return f"{elsewhere} It belongs at the top level"
    return guess


def duplicate_key_warnings(source: ConfigSource) -> list[str]:
    """Return one warning per key that stands twice: JSON readers silently take the last."""
    return [f'"{key}" stands more than once: the last one counts' for key in source.duplicates[:_MOST_NAMED]]
