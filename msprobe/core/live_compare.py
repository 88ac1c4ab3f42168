"""Compare a record with the same record of an earlier md5 dump, value by value.

Tensors agree if dtype, shape and checksum do; numbers, booleans and strings if they are equal. What has neither (other
objects, tensors without data) is not compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# Begin of the paths of what goes into a call, or arrives in its backward pass. Parameters of a module are inputs, too.
_INPUTS = ("input", "kwargs", "parameters")
_FILE_KEYS = {"input_args": "input", "input_kwargs": "kwargs"}
_TENSOR_KEYS = {"type", "dtype", "shape", "requires_grad"}
_PLAIN = ("int", "float", "bool", "str")


@dataclass(frozen=True, slots=True)
class Values:
    """What a record holds, as text that is equal when the values are.

    Attributes
    ----------
    inputs, outputs : dict
        Path (as in names of tensor files: ``input.0``, ``kwargs.weight``, ``output.1``) -> text.
    """

    inputs: dict[str, str]
    outputs: dict[str, str]

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Values:
        """Read a record of ``dump.json``, of any kind."""
        inputs: dict[str, str] = {}
        outputs: dict[str, str] = {}
        for path, entry in leaves_of(record):
            text = _text(entry)
            if text is not None:
                (inputs if path.partition(".")[0] in _INPUTS else outputs)[path] = text
        return cls(inputs, outputs)


def leaves_of(record: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield path and entry of every value in a record, in order."""
    for key, part in record.items():
        yield from leaves(_FILE_KEYS.get(key, key), part)


def leaves(path: str, part: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield path and entry of every value in a part of a record, in order."""
    if isinstance(part, list):
        for index, item in enumerate(part):
            yield from leaves(f"{path}.{index}", item)
    elif isinstance(part, dict):
        if is_tensor(part) or ("value" in part and isinstance(part.get("type"), str)):
            yield path, part
        else:
            for key, item in part.items():
                yield from leaves(f"{path}.{key}", item)


def is_tensor(entry: Mapping[str, Any]) -> bool:
    """Whether an entry describes a tensor."""
    return entry.keys() >= _TENSOR_KEYS and isinstance(entry["type"], str)


def _text(entry: Mapping[str, Any]) -> str | None:
    if is_tensor(entry):
        checksum = entry.get("md5")
        return None if checksum is None else f"{entry['dtype']}{entry['shape']} {checksum}"
    return f"{entry['type']} {entry['value']}" if entry["type"] in _PLAIN else None


def differing(ours: Mapping[str, str], earlier: Mapping[str, str]) -> list[str]:
    """Return the paths at which two sides differ, or that only one of them has.

    A side that one of the runs did not record (``data_mode``) does not differ.
    """
    if not ours or not earlier:
        return []
    return [path for path in dict.fromkeys((*ours, *earlier)) if ours.get(path) != earlier.get(path)]
