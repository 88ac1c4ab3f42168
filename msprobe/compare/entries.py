"""From the JSON of a record to its values: names of their places, and typed entries."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Any, NamedTuple

from msprobe.compare.rows import Entry, FxNode

INPUT, PARAMETERS, OUTPUT = "input", "parameters", "output"

#: Key of a record -> (which side of the call, what its places are called in tables).
_SECTIONS: Mapping[str, tuple[str, str]] = {
    "input_args": (INPUT, "input"),
    "input_kwargs": (INPUT, "input"),
    "input": (INPUT, "input"),
    "parameters": (PARAMETERS, "parameters"),
    "output": (OUTPUT, "output"),
}
_ORDER = {INPUT: 0, PARAMETERS: 1, OUTPUT: 2}
_INTEGERS = frozenset({int})
_WIDEST = 64
_NOT_A_LEAF = frozenset({"type", "dtype", "class_type"})

#: MindSpore's names of parameters -> PyTorch's.
_PARAMETER_NAMES: Mapping[str, str] = {
    "gamma": "weight",
    "beta": "bias",
    "embedding_table": "weight",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}


class Leaf(NamedTuple):
    """One value of a record.

    Attributes
    ----------
    section
        ``input``, ``parameters`` or ``output``.
    name
        Its place, e.g. ``input.0``, ``parameters.weight``.
    raw
        Its JSON.
    """

    section: str
    name: str
    raw: Any


def leaves_of(record: Any) -> list[Leaf]:
    """Return the values of a record: inputs, then parameters, then outputs.

    Parameters
    ----------
    record
        JSON of an API, module, ``parameters_grad`` or debug record, of ours or of mindstudio-probe.
    """
    if not isinstance(record, Mapping):
        return []
    found: list[Leaf] = []
    known = [key for key in record if key in _SECTIONS]
    if not known:  # {parameter: [gradient]} or a value given to save()
        for key, value in record.items():
            single = value[0] if isinstance(value, list) and len(value) == 1 else value
            _collect(found, OUTPUT, _PARAMETER_NAMES.get(key, key), single)
        return found
    last, in_order = 0, True
    for key in known:
        section, name = _SECTIONS[key]
        in_order = in_order and _ORDER[section] >= last
        last = _ORDER[section]
        _collect_section(found, section, name, record[key])
    if "is_nan" in record:  # task nan_check: the record has no statistics, but this
        found.append(Leaf(OUTPUT, "is_nan", record["is_nan"]))
    if not in_order:
        found.sort(key=_section_order)
    return found


def _collect_section(found: list[Leaf], section: str, name: str, value: Any) -> None:
    if value.__class__ is list:
        for place, item in enumerate(value):
            if item.__class__ is dict and "type" in item:  # nearly always: not worth a call
                found.append(Leaf(section, f"{name}.{place}", item))
            else:
                _collect(found, section, f"{name}.{place}", item)
    elif isinstance(value, Mapping) and not _is_leaf(value):
        for place, item in value.items():
            inner = _PARAMETER_NAMES.get(place, place) if section == PARAMETERS else place
            _collect(found, section, f"{name}.{inner}", item)
    elif value is not None:
        _collect(found, section, f"{name}.0", value)


def _section_order(leaf: Leaf) -> int:
    return _ORDER[leaf.section]


def _is_leaf(value: Mapping[str, Any]) -> bool:
    return bool(value.keys() & _NOT_A_LEAF)


def _collect(found: list[Leaf], section: str, name: str, value: Any) -> None:
    if value.__class__ is dict:
        if "type" in value or _is_leaf(value):
            found.append(Leaf(section, name, value))
            return
        for key, item in value.items():
            _collect(found, section, f"{name}.{key}", item)
    elif value.__class__ is list:
        for place, item in enumerate(value):
            _collect(found, section, f"{name}.{place}", item)
    else:
        found.append(Leaf(section, name, value))


#: What most tensors have, besides their type, and nothing else: they are read in one call.
_PLAIN = itemgetter("dtype", "shape", "Max", "Min", "Mean", "Norm", "requires_grad")
_PLAIN_SIZE = 8


def entry_of(raw: Any) -> Entry:
    """Return the typed entry of one value's JSON."""
    if raw is None:
        return Entry("null", "None")
    if raw.__class__ is not dict:
        return Entry("scalar", type(raw).__name__, value=raw)
    if len(raw) == _PLAIN_SIZE:
        try:
            dtype, shape, largest, smallest, mean, norm, requires_grad = _PLAIN(raw)
        except KeyError:
            pass
        else:
            if shape and largest.__class__ is smallest.__class__ is mean.__class__ is norm.__class__ is float:
                name = _CANONICAL.get(dtype) or canonical_dtype(str(dtype))
                return Entry("tensor", name, tuple(shape), largest, smallest, mean, norm, requires_grad)
    return _unusual_entry(raw)


def _unusual_entry(raw: Mapping[str, Any]) -> Entry:
    """Do what `entry_of` does, for whatever a mapping holds."""
    dtype = raw.get("dtype")
    if dtype.__class__ is not str or "shape" not in raw:
        return Entry("scalar", str(raw.get("type") or raw.get("class_type") or ""), value=_plain_value(raw))
    checksum = raw.get("md5")
    if checksum is None:
        checksum = raw.get("xor") if raw.get("xor") is not None else raw.get("hash")
    shape, gradient = raw["shape"], raw.get("requires_grad")
    largest, smallest, mean, norm = raw.get("Max"), raw.get("Min"), raw.get("Mean"), raw.get("Norm")
    if not shape and norm.__class__ is float:
        norm = abs(norm)  # mindstudio-probe writes a 0-dim value itself
    return Entry(
        "tensor",
        _CANONICAL.get(dtype) or canonical_dtype(dtype),
        tuple(shape) if shape.__class__ is list and _INTEGERS.issuperset(map(type, shape)) else (),
        largest if largest.__class__ is float else number_of(largest),
        smallest if smallest.__class__ is float else number_of(smallest),
        mean if mean.__class__ is float else number_of(mean),
        norm if norm.__class__ is float else number_of(norm),
        gradient if gradient.__class__ is bool else None,
        checksum if checksum is None else str(checksum),
        data_name_of(raw) if "data_name" in raw else None,
        raw.get("is_nan"),
        count_of(raw, "NaN") if "NaN" in raw else 0,
        count_of(raw, "Inf") if "Inf" in raw else 0,
        str(raw.get("reason") or ""),
    )


def fx_of(record: Any) -> FxNode | None:
    """Return which node of a compiled graph a record comes from; None for one of an eager call."""
    found = record.get("fx") if isinstance(record, Mapping) else None
    if not isinstance(found, Mapping):
        return None
    graph, node = found.get("graph"), found.get("node")
    return FxNode(graph, node) if isinstance(graph, int) and isinstance(node, str) else None


def data_name_of(raw: Mapping[str, Any]) -> str | None:
    """Return the file name of a tensor entry; None without a file (mindstudio-probe also writes ``-1``)."""
    name = raw.get("data_name")
    return name if isinstance(name, str) and name and name != "-1" else None


def count_of(raw: Mapping[str, Any], key: str) -> int:
    """Return a count of non-finite elements; 0 where it is not written."""
    count = raw.get(key)
    return count if isinstance(count, int) else 0


def number_of(value: Any) -> float | int | None:
    """Return a statistic as a number; None for anything else (mindstudio-probe writes ``"N/A"`` in places)."""
    if isinstance(value, int) and value.bit_length() > _WIDEST:  # no tensor has this; it only has to be survived
        if value.bit_length() < sys.float_info.max_exp:
            return float(value)
        return math.inf if value > 0 else -math.inf
    return value if isinstance(value, (int, float)) else None


def canonical_dtype(dtype: str) -> str:
    """Return ``float32`` for ``torch.float32``, ``Float32`` and ``mindspore.float32``."""
    short = dtype.rpartition(".")[2].lower()
    return _SHORT_NAMES.get(short, short)


_SHORT_NAMES: Mapping[str, str] = {
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "long": "int64",
    "int": "int32",
}
_CANONICAL: Mapping[Any, str] = {
    f"torch.{dtype}": dtype for dtype in "float16 bfloat16 float32 float64 int32 int64 uint8 bool".split()
}


def _plain_value(raw: Mapping[str, Any]) -> Any:
    for key in ("value", "format", "group_ranks"):
        if key in raw:
            return raw[key]
    rest = {key: value for key, value in raw.items() if key not in {"type", "class_type"}}
    return rest or None


def tensors_of(record: Any, section: str) -> Iterator[Entry]:
    """Yield the tensors of one section of a record."""
    for leaf in leaves_of(record):
        if leaf.section == section:
            entry = entry_of(leaf.raw)
            if entry.kind == "tensor":
                yield entry
