"""Dumps written by hand, in the layouts of both tools."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msprobe.store.json_bytes import dumps_json


def tensor(
    scale: float = 1.0, shape: tuple[int, ...] = (2, 3), dtype: str = "torch.float32", **more: Any
) -> dict[str, Any]:
    entry = {"type": "torch.Tensor", "dtype": dtype, "shape": list(shape)}
    entry |= {
        "Max": 2.0 * scale,
        "Min": -1.0 * scale,
        "Mean": 0.25 * scale,
        "Norm": 3.0 * scale,
        "requires_grad": False,
    }
    return {**entry, **more}


def call(*inputs: Any, out: Any) -> dict[str, Any]:
    return {"input_args": list(inputs), "input_kwargs": {}, "output": [out]}


def chain(*apis: str, scales: Mapping[int, float] | None = None) -> list[tuple[str, dict[str, Any]]]:
    """Calls that each take what the one before made; ``scales`` multiplies the output of single ones."""
    counts: dict[str, int] = {}
    records, value = [], 1.0
    for place, api in enumerate(apis):
        number = counts.get(api, 0)
        counts[api] = number + 1
        made = (value + 0.37) * (scales or {}).get(place, 1.0)
        records.append((f"{api}.{number}.forward", call(tensor(value), out=tensor(made))))
        value = made
    return records


def write(
    folder: Path,
    records: list[tuple[str, Any]],
    *,
    step: int = 0,
    rank: str = "rank0",
    layout: str = "ours",
    parents: Mapping[str, str] | None = None,
    framework: str = "pytorch",
) -> Path:
    """Write one rank of one step; the folder of the run."""
    place = folder / f"step{step}" / rank
    place.mkdir(parents=True)
    head = {"task": "statistics", "level": "mix", "framework": framework, "dump_data_dir": None}
    if layout == "ours":
        members = [dumps_json(name) + b":" + dumps_json(record) for name, record in records]
        text = dumps_json(head)[:-1] + b',"data":{\n' + b",\n".join(members) + b"\n}}\n"
        (place / "coverage.json").write_text('{"complete":true}')
    else:
        text = json.dumps({**head, "data": dict(records)}, indent=1 if layout == "peer" else None).encode()
    (place / "dump.json").write_bytes(text)
    (place / "construct.json").write_text(json.dumps(parents or {}))
    return folder
