"""Is there a NaN or an Inf in a tensor? Known at once on the CPU, later on an accelerator.

On the CPU one pass of the native kernel counts them. On an accelerator one reduction is launched, the largest and the
smallest element: a NaN spreads to both, an Inf is one of them. They stay on the device until `NonfiniteScan.resolve`.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Container
from typing import NamedTuple, TypeAlias

import torch

from msprobe.measure.backends import native_module
from msprobe.measure.cpu import reduce_cpu, reduce_native
from msprobe.measure.dtypes import PLAIN_DTYPES, DtypeInfo
from msprobe.measure.quiet import Quiet
from msprobe.measure.views import view_tensor

Sink: TypeAlias = Callable[[bool], None]

_AMINMAX = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_ABLE = ("float", "complex")
_CLASSES = (torch.Tensor, torch.nn.Parameter)


class _Pending(NamedTuple):
    """Largest and smallest element, [2] on their device, and who wants to know."""

    extremes: torch.Tensor
    sink: Sink


class NonfiniteScan:
    """Looks for NaN and Inf.

    Parameters
    ----------
    immediate
        Device types that are read at once; tensors of others are launched and answered by `resolve`.

    Examples
    --------
    >>> NonfiniteScan().scan(torch.tensor([1.0, float("inf")]), print)
    True
    """

    __slots__ = ("_immediate", "_lock", "_native", "_pending")

    def __init__(self, immediate: Container[str] = ("cpu",)) -> None:
        self._immediate = immediate
        self._native = native_module() if "cpu" in immediate else None
        self._lock = threading.Lock()
        self._pending: list[_Pending] = []

    def scan(self, tensor: torch.Tensor, sink: Sink) -> bool | None:
        """Look at one tensor of any kind.

        Parameters
        ----------
        tensor
            Integers, booleans and tensors without data have neither NaN nor Inf.
        sink
            Called once with the answer by `resolve`, if it is not known now.

        Returns
        -------
        bool or None
            Whether there is a NaN or an Inf; None if `sink` will be told.
        """
        plain = PLAIN_DTYPES.get(tensor.dtype)
        if plain is not None and plain.kind not in _ABLE:
            return False
        if plain is not None and self._native is not None and _is_plain(tensor, plain):
            counts = reduce_native(self._native, tensor, plain)
            return bool(counts[4] or counts[5])
        with Quiet():
            view = view_tensor(tensor)
            if view.data is None or view.info.kind not in _ABLE:
                return False
            if view.data.device.type in self._immediate:
                found = reduce_cpu(view.data, view.info)
                return bool(found[4] or found[5])
            pending = _Pending(_extremes(view.data), sink)
        with self._lock:
            self._pending.append(pending)
        return None

    def resolve(self) -> None:
        """Wait for the devices and answer every open question, with one copy per device and dtype."""
        with self._lock:
            pending, self._pending = self._pending, []
        groups: dict[tuple[torch.device, torch.dtype], list[_Pending]] = defaultdict(list)
        for item in pending:
            groups[item.extremes.device, item.extremes.dtype].append(item)
        with Quiet():
            for device in {device for device, _ in groups}:
                torch.get_device_module(device).synchronize(device)
            for group in groups.values():
                finite = torch.stack([item.extremes for item in group]).isfinite().all(dim=1).tolist()
                for item, fine in zip(group, finite, strict=True):
                    item.sink(not fine)


def _is_plain(tensor: torch.Tensor, info: DtypeInfo) -> bool:
    """Whether the kernel may read the tensor as it is: no torch operation has to run then."""
    if type(tensor) not in _CLASSES or not tensor.is_cpu or info.kind != "float":
        return False
    try:
        address = tensor.data_ptr()
    except RuntimeError:  # sparse, nested or wrapped by a transform
        return False
    return tensor.numel() > 0 and address != tensor.storage_offset() * info.itemsize and not tensor.is_neg()


def _extremes(data: torch.Tensor) -> torch.Tensor:
    real = torch.view_as_real(data.resolve_conj()) if data.is_complex() else data
    if real.dtype not in _AMINMAX:
        real = real.to(torch.float32)
    return torch.stack(torch.aminmax(real))
