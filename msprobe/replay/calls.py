"""From the records of a dump to the API calls that are replayed: forward and backward of a call together.

Nothing here needs a framework: the process that reads the dump imports none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from msprobe.core.names import BACKWARD, RecordName, parse_name

_KERNEL_PREFIXES = frozenset({"Aten"})


@dataclass(frozen=True, slots=True)
class ApiCall:
    """One call of an API, as a dump describes it.

    Attributes
    ----------
    name : str
        Record name without its direction: ``Functional.linear.3``. A kernel of a backward pass is a call of its own:
        ``Aten.mm.default.0.backward``.
    base : str
        ``Functional.linear``.
    args, kwargs
        Arguments in the encodings of a dump.
    outputs
        Outputs in the encodings of a dump, or None where the dump has none.
    gradients
        Gradients of the outputs in the encodings of a dump. None: no backward pass was recorded.
    missing : str
        Why the call cannot be replayed, as far as its records tell; empty if it can.
    """

    name: str
    base: str
    args: list[Any]
    kwargs: dict[str, Any]
    outputs: list[Any] | None
    gradients: list[Any] | None
    missing: str = ""

    @property
    def path(self) -> str:
        """API name within its prefix: ``linalg.norm``."""
        return self.base.partition(".")[2]

    @property
    def prefix(self) -> str:
        """``Functional``, ``Tensor``, ..."""
        return self.base.partition(".")[0]

    def as_json(self) -> dict[str, Any]:
        """Return the fields as a JSON object; :meth:`from_json` reads it."""
        return {key: getattr(self, key) for key in self.__slots__}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> ApiCall:
        """Build from what :meth:`as_json` returned."""
        return cls(**fields)


def calls_of(data: Mapping[str, Any]) -> list[ApiCall]:
    """Return the API calls of a dump in the order of their forward records.

    Module records are left out, and tagged ones: a recomputed call and a second backward pass repeat what is there.

    Parameters
    ----------
    data : mapping
        Record name to record, as in ``dump.json``.
    """
    found: dict[str, dict[str, Any]] = {}
    parsed: dict[str, RecordName] = {}
    for text, record in data.items():
        name = parse_name(text)
        if name is None or name.is_module or name.tag or not isinstance(record, Mapping):
            continue
        key = f"{name.prefix}.{name.path}.{name.index}"
        if name.prefix in _KERNEL_PREFIXES and name.direction == BACKWARD:
            key += ".backward"  # a kernel of a backward pass is a call of its own
        parsed[key] = name
        found.setdefault(key, {})[name.direction] = record
    return [_call(key, parsed[key], records) for key, records in found.items()]


def _call(key: str, name: RecordName, records: Mapping[str, Any]) -> ApiCall:
    forward, backward = records.get("forward"), records.get("backward")
    call = ApiCall(key, f"{name.prefix}.{name.path}", [], {}, None, None)
    if name.prefix in _KERNEL_PREFIXES and backward is not None:
        return _filled(call, backward.get("input"), {}, backward.get("output"))
    if forward is None:
        return replace(call, missing="no forward record")
    if backward is not None and isinstance(backward.get("input"), list):
        call = replace(call, gradients=backward["input"])
    return _filled(call, forward.get("input_args"), forward.get("input_kwargs", {}), forward.get("output"))


def _filled(call: ApiCall, args: Any, kwargs: Any, outputs: Any) -> ApiCall:
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        return replace(call, missing="no inputs in the record (data_mode without input)")
    return replace(call, args=args, kwargs=kwargs, outputs=outputs if isinstance(outputs, list) else None)
