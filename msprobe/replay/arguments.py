"""Arguments of a call, rebuilt from the encodings of a dump.

Tensors come from their files (task tensor), or are made from their statistics. Everything that is not a tensor is
decoded to the value it was. What cannot be rebuilt raises :class:`UnreplayableError` with the reason.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from msprobe.replay.calls import ApiCall
from msprobe.replay.generate import generate, statistics_of
from msprobe.store.tensor_reader import DAMAGE

_DEVICE = re.compile(r"(?:cpu|cuda|npu|xpu|mps)(?::(?:\d+|None))?\Z")
_PLAIN_TENSORS = ("torch.Tensor", "torch.nn.parameter.Parameter", "torch.distributed.tensor.DTensor")
_PYTHON_TYPES = {"<class 'float'>": torch.float64, "<class 'int'>": torch.int64, "<class 'bool'>": torch.bool}

#: Keywords and (API, position) of tensors that must ascend, and of masks of which no row may be masked as a whole.
_SORTED = frozenset(
    {"offs", "offsets", "boundaries", "sorted_sequence", "cu_seqlens_q", "cu_seqlens_k", "crow_indices"}
    | {("bucketize", 1), ("searchsorted", 0), ("embedding_bag", 2), ("_grouped_mm", 2)}
)
_MASKS = frozenset({"attn_mask", "attention_mask", "mask", ("scaled_dot_product_attention", 3)})


class UnreplayableError(ValueError):
    """A call cannot be repeated; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """Stands for a tensor in a structure: its position in :attr:`Arguments.tensors`."""

    index: int


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a call is made with.

    Attributes
    ----------
    args, kwargs
        Values, with a :class:`Leaf` in the place of each tensor.
    tensors : list of torch.Tensor
        On the CPU, in the recorded dtype.
    wants_gradient : list of bool
        Whether the recorded tensor required a gradient.
    notes : list of str
        What is not as recorded.
    """

    args: list[Any]
    kwargs: dict[str, Any]
    tensors: list[torch.Tensor] = field(default_factory=list)
    wants_gradient: list[bool] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Rebuilder:
    """Rebuilds the arguments of one call.

    Parameters
    ----------
    call : ApiCall
    tensor_folder : Path or None
        Folder of the tensor files.
    seed : int
        With the name of the call it decides the values of tensors without a file.
    """

    def __init__(self, call: ApiCall, tensor_folder: Path | None, seed: int) -> None:
        self._call = call
        self._folder = tensor_folder
        self._generator = torch.Generator().manual_seed(
            zlib.crc32(call.name.encode()) ^ (seed * 0x9E3779B1 % (1 << 32))
        )
        self._built = Arguments([], {})

    def arguments(self) -> Arguments:
        """Return the arguments of the call.

        Raises
        ------
        UnreplayableError
            One of them cannot be rebuilt.
        """
        path = self._call.path.rpartition(".")[2]
        args = [self._value(entry, (path, index), index) for index, entry in enumerate(self._call.args)]
        kwargs = {key: self._value(entry, key, key) for key, entry in self._call.kwargs.items()}
        built = self._built
        return Arguments(args, kwargs, built.tensors, built.wants_gradient, built.notes)

    def gradients(self) -> list[torch.Tensor | None]:
        """Return the gradients of the outputs, None where there was none; call it after :meth:`arguments`.

        Raises
        ------
        UnreplayableError
            One of them cannot be rebuilt.
        """
        entries = _leaves(self._call.gradients or [])
        return [None if entry is None else self._tensor(entry, "") for entry in entries]

    @property
    def notes(self) -> list[str]:
        """What is not as recorded, so far."""
        return self._built.notes

    def _value(self, entry: Any, role_key: Any, where: Any) -> Any:
        if entry is None:
            return None
        if isinstance(entry, list):
            return [self._value(item, None, where) for item in entry]
        if not isinstance(entry, Mapping):
            raise UnreplayableError(f"argument {where}: {type(entry).__name__} instead of an encoded value")
        kind = entry.get("type")
        if isinstance(kind, str) and "shape" in entry and "dtype" in entry:
            return self._leaf(entry, role_key, where)
        if kind in _DECODERS and isinstance(kind, str):
            return _DECODERS[kind](entry, where)
        if isinstance(kind, str) and isinstance(entry.get("value"), bool | int | float) and "reason" not in entry:
            return entry["value"]  # a numpy scalar
        if not entry:
            raise UnreplayableError(f"argument {where} was not recorded")
        if isinstance(kind, str):
            raise UnreplayableError(f"argument {where} is a {kind}")
        return {key: self._value(item, None, where) for key, item in entry.items()}

    def _leaf(self, entry: Mapping[str, Any], role_key: Any, where: Any) -> Any:
        kind = str(entry["type"])
        if kind not in _PLAIN_TENSORS and kind != "numpy.ndarray":
            raise UnreplayableError(f"argument {where} is a {kind}")
        if "layout" in entry and entry["layout"] not in ("strided", "torch.strided"):
            raise UnreplayableError(f"argument {where} has the layout {entry['layout']}")
        role = "sorted" if role_key in _SORTED else "mask" if role_key in _MASKS else ""
        tensor = self._tensor(entry, role)
        self._built.tensors.append(tensor)
        self._built.wants_gradient.append(bool(entry.get("requires_grad")))
        if kind.endswith("DTensor"):
            self.notes.append("the local shard of a DTensor")
        return Leaf(len(self._built.tensors) - 1)

    def _tensor(self, entry: Mapping[str, Any], role: str) -> torch.Tensor:
        dtype = dtype_of(str(entry["dtype"]))
        shape = entry["shape"]
        if dtype is None or not all(isinstance(size, int) for size in shape):
            raise UnreplayableError(f"a tensor of {entry['dtype']} with shape {shape}")
        found = self._from_file(entry, dtype, shape)
        if found is not None:
            return found
        if math.prod(shape) == 0:
            return torch.zeros(shape, dtype=dtype)
        statistics = statistics_of(entry)
        if statistics is None:
            why = entry.get("reason") or ("its statistics are NaN" if "Max" in entry else "no statistics in the dump")
            if "data_name" in entry:
                why = f"its file {entry['data_name']} is missing, and {why}"
            raise UnreplayableError(f"the values of a {entry['dtype']} tensor are not known: {why}")
        return generate(statistics, shape, dtype, self._generator, role)

    def _from_file(self, entry: Mapping[str, Any], dtype: torch.dtype, shape: list[int]) -> torch.Tensor | None:
        name = entry.get("data_name")
        if not isinstance(name, str):
            return None
        file = self._folder / Path(name).name if self._folder is not None else None
        if file is None or not file.is_file():
            self.notes.append(f"tensor file {name} is missing: made from its statistics")
            return None
        try:
            tensor = torch.load(file, map_location="cpu", weights_only=True)
        except (*DAMAGE, MemoryError) as error:
            self.notes.append(f"tensor file {name} cannot be read ({type(error).__name__}): made from its statistics")
            return None
        if tensor.dtype is not dtype or list(tensor.shape) != shape:
            self.notes.append(f"tensor file {name} holds another tensor: made from its statistics")
            return None
        return tensor.detach().contiguous()


def dtype_of(text: str) -> torch.dtype | None:
    """Return the dtype that a dump names, such as ``torch.float32``; None if this PyTorch has none of that name."""
    name = text.removeprefix("torch.")
    found = getattr(torch, name, None)
    return found if isinstance(found, torch.dtype) and not name.startswith(("q", "bits")) else None


def _leaves(entries: list[Any]) -> list[Any]:
    """Flatten the entries of gradients."""
    flat: list[Any] = []
    for entry in entries:
        flat += _leaves(entry) if isinstance(entry, list) else [entry]
    return flat


def _dtype(entry: Mapping[str, Any], where: Any) -> torch.dtype:
    text = str(entry["value"])
    found = _PYTHON_TYPES.get(text) or dtype_of(text)
    if found is None:
        raise UnreplayableError(f"argument {where} is the dtype {text}, which this PyTorch does not have")
    return found


@dataclass(frozen=True, slots=True)
class DeviceArgument:
    """Stands for a device in a structure: a replay runs on its own."""


def _text(entry: Mapping[str, Any], where: Any) -> Any:
    text = str(entry["value"])
    if text.endswith(" characters)"):
        raise UnreplayableError(f"argument {where} is a text that was cut")
    return DeviceArgument() if _DEVICE.match(text) else text


def _memory_format(entry: Mapping[str, Any], _where: Any) -> Any:
    return getattr(torch, str(entry["format"]))


def _slice(entry: Mapping[str, Any], where: Any) -> slice:
    bounds = []
    for bound in entry["value"]:
        plain = bound.get("value") if isinstance(bound, Mapping) else bound
        if plain is not None and not isinstance(plain, int):
            raise UnreplayableError(f"argument {where} is a slice between tensors")
        bounds.append(plain)
    return slice(*bounds)


def _plain(entry: Mapping[str, Any], _where: Any) -> Any:
    return entry["value"]


_DECODERS: dict[str, Callable[[Mapping[str, Any], Any], Any]] = {
    "bool": _plain,
    "int": lambda entry, _where: int(str(entry["value"]), 0),
    "float": lambda entry, _where: float(entry["value"]),
    "str": _text,
    "complex": lambda entry, _where: complex(entry["value"]),
    "ellipsis": lambda _entry, _where: ...,
    "slice": _slice,
    "torch.dtype": _dtype,
    "torch.device": lambda _entry, _where: DeviceArgument(),
    "torch.Size": lambda entry, _where: torch.Size(entry["value"]),
    "torch.memory_format": _memory_format,
}
