"""The float status register of an NPU, shared by calls that run one after the other.

A call clears it when it begins and reads it when it has returned. There is one register per device, so a call that
begins while another is open (a node of another call in a backward pass) has it read for that one first. What was read
stays on the device until :meth:`StatusRegister.resolve`.
"""

from __future__ import annotations

import sys
import threading
from typing import Protocol

import torch

from msprobe.kernels.npu.register_probe import RegisterProbe
from msprobe.measure.quiet import Quiet


class Asker(Protocol):
    """Who wants to know what the register says."""

    def expect(self) -> None:
        """An answer will come."""

    def answer(self, bad: bool) -> None:
        """Whether the register was set."""


class StatusRegister:
    """The registers of the devices that this process uses."""

    def __init__(self) -> None:
        self._lanes: dict[int, _Lane] = {}

    def begin(self, asker: Asker) -> None:
        """From here on the current device works for ``asker``."""
        index = torch.get_device_module("npu").current_device()
        lane = self._lanes.get(index)
        if lane is None:
            lane = self._lanes[index] = _Lane(torch.device("npu", index))
        lane.begin(asker)

    def end(self, asker: Asker) -> None:
        """The work for ``asker`` is queued: read what it has left. Nothing happens if that was done already."""
        for lane in self._lanes.values():
            lane.end(asker)

    def resolve(self) -> None:
        """Wait for the devices, copy the readings of each to the host once, and answer."""
        for lane in list(self._lanes.values()):
            lane.resolve()


class _Lane:
    """The register of one device."""

    def __init__(self, device: torch.device) -> None:
        with Quiet():
            self._probe = RegisterProbe(device)
        self._device = device
        self._lock = threading.Lock()
        self._open: Asker | None = None
        self._pending: list[Asker] = []

    def begin(self, asker: Asker) -> None:
        with self._lock, Quiet():
            self._read()
            self._open = asker
            self._probe.clear()

    def end(self, asker: Asker) -> None:
        with self._lock, Quiet():
            if self._open is asker:
                self._read()

    def resolve(self) -> None:
        with self._lock, Quiet():
            pending, self._pending = self._pending, []
            readings = self._probe.take()
        if not pending:
            return
        with Quiet():
            torch.get_device_module("npu").synchronize(self._device)
            values = readings.fetch()
        for asker, bad in zip(pending, values, strict=True):
            asker.answer(bad)

    def _read(self) -> None:
        if self._open is None:
            return
        asker, self._open = self._open, None
        self._probe.read_into_next_slot()
        asker.expect()
        self._pending.append(asker)


def npu_in_use() -> bool:
    """Whether torch_npu is loaded and sees a device; it is not imported here."""
    return "torch_npu" in sys.modules and bool(sys.modules["torch_npu"].npu.is_available())
