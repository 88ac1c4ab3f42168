"""Read the dump of one step and rank, of either tool, for comparison."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Dump:
    """The three files of one step and rank, and its tensor files.

    Attributes
    ----------
    data : dict
        Records of dump.json. An entry with a tensor file has, instead of the file's whole name as ``data_name``, the
        part behind the record's name, and as ``contents`` a digest of the tensor in the file.
    construct : dict
        Child -> parent.
    stacks : dict
        Record -> frames.
    unnamed : frozenset of str
        Tensor files that no record names.
    """

    data: dict[str, Any]
    construct: dict[str, Any]
    stacks: dict[str, list[str]]
    unnamed: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def read(cls, folder: Path) -> Dump:
        """Read a ``step{N}/rank{R}`` or ``proc{pid}`` folder."""
        files = {name: _json(folder / f"{name}.json") for name in ("dump", "construct", "stack")}
        stacks = {name: frames for names, frames in files["stack"].values() for name in names}
        tensors = folder / "dump_tensor_data"
        present = {file.name for file in tensors.iterdir()} if tensors.is_dir() else set()
        named: set[str] = set()
        data = {name: _resolve(name, record, tensors, named) for name, record in files["dump"]["data"].items()}
        return cls(data, files["construct"], stacks, frozenset(present - named))


def _json(path: Path) -> dict[str, Any]:
    """A JSON file; empty if it was not asked for."""
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return found


def _resolve(record: str, value: Any, folder: Path, named: set[str]) -> Any:
    """The value with the contents of its tensor files; their names are added to ``named``."""
    if isinstance(value, list):
        return [_resolve(record, item, folder, named) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: _resolve(record, item, folder, named) for key, item in value.items()}
    if "data_name" in value and "shape" in value:
        name = value["data_name"]
        named.add(name)
        found["data_name"] = name.removeprefix(f"{record}.")
        found["contents"] = _digest(folder / name)
    return found


def _digest(path: Path) -> str:
    """Hash of dtype, shape and elements of the tensor in a file."""
    if not path.exists():
        return "no file"
    if path.suffix == ".npy":
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]  # its header holds dtype and shape
    import torch  # noqa: PLC0415 - only for dumps with tensors of PyTorch

    tensor = torch.load(path, weights_only=True).detach().contiguous()
    described = f"{tensor.dtype} {list(tensor.shape)} ".encode()
    return hashlib.sha256(described + tensor.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()[:16]
