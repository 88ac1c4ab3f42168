"""Checksums of device tensors by torch operations: launched now, finished on the host from a few bytes each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch

from msprobe.measure.backends import COUNTS
from msprobe.measure.checksums import (
    Parts,
    combine_hashes,
    content_bytes,
    finish_hash,
    hash_body,
    hex64,
    xor_tensor,
)
from msprobe.measure.device_crc import CrcFolder, finish_crc
from msprobe.measure.device_rows import DEVICE_CHUNK
from msprobe.measure.entry_parts import ChecksumMode

Layout: TypeAlias = tuple[int, torch.Size]


class PendingChecksum(NamedTuple):
    """A launched checksum: what the device computes, the sizes in bytes and shapes of the parts, who gets the text."""

    mode: ChecksumMode
    values: list[torch.Tensor]
    layouts: list[Layout]
    sink: Callable[[str], None]

    def text(self, contents: Sequence[bytes]) -> str:
        """Return the checksum, given the content of `values`."""
        if self.mode == "md5":
            return f"{finish_crc(contents[0], sum(nbytes for nbytes, _ in self.layouts)):08x}"
        words = [int.from_bytes(content, "little") for content in contents]
        if self.mode == "xor":
            return hex64(words[0])
        hashes = [finish_hash(word, *layout) for word, layout in zip(words, self.layouts, strict=True)]
        return hex64(combine_hashes(hashes))


class ChecksumLauncher:
    """Launches checksums. Nothing waits for a device and no content is copied to the host."""

    __slots__ = ("_folder",)

    def __init__(self) -> None:
        self._folder = CrcFolder()

    def launch(self, mode: ChecksumMode, parts: Parts, sink: Callable[[str], None]) -> tuple[PendingChecksum, str]:
        """Queue a checksum of strided tensors; return it and which kernel computes it."""
        device = parts[-1].device
        kernel = "torch"
        if mode == "md5":
            pieces = (piece.to(device) for part in parts for piece in content_bytes(part, DEVICE_CHUNK))
            values = [self._folder.message(pieces)]
        elif mode == "xor":
            values = [xor_tensor(parts, DEVICE_CHUNK)]
            kernel = _xor_kernel(device)
        else:
            values = [hash_body(part, DEVICE_CHUNK) for part in parts]
        layouts = [(part.numel() * part.itemsize, part.shape) for part in parts]
        return PendingChecksum(mode, values, layouts, sink), kernel


def _xor_kernel(device: torch.device) -> str:
    if device.type != "npu":
        return "torch"
    from msprobe.kernels.npu import extension  # noqa: PLC0415 - for this device only

    missing = extension.problem()
    if missing is None:
        return "npu operator"
    COUNTS.reasons("npu")[missing] += 1
    return "torch"


def fetch(values: Sequence[torch.Tensor]) -> list[bytes]:
    """Return the bytes of tensors, with one copy per device. Waits for what this thread's streams compute."""
    groups: dict[torch.device, list[int]] = {}
    for index, value in enumerate(values):
        groups.setdefault(value.device, []).append(index)
    found = [b""] * len(values)
    for members in groups.values():
        flat = [values[index].reshape(-1).view(torch.uint8) for index in members]
        content = torch.cat(flat).cpu().numpy().tobytes()
        start = 0
        for index, piece in zip(members, flat, strict=True):
            found[index] = content[start : start + piece.numel()]
            start += piece.numel()
    return found
