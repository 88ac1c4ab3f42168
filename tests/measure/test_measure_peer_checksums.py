"""md5 and xor are those of mindstudio-probe 26.2.0 where it has them, and the documented ones where it has none.

``peer_checksums.json`` holds what it wrote for the cases of tools/checksum_cases.py; tools/peer_checksums.py repeats
that.
"""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path

import orjson
import pytest
import torch

from msprobe.measure.encode import ValueEncoder

sys.path.append(str(Path(__file__).parents[2] / "tools"))

from checksum_cases import DTYPES, MODES, cases
from peer_checksums import is_checksum

RECORDED = json.loads(Path(__file__).with_name("peer_checksums.json").read_text("utf-8"))
CASES = dict(cases())
COMPLEX = {"complex64", "complex128"}
FLOAT8 = {"float8_e4m3fn", "float8_e5m2"}
FLOAT = {"float16", "bfloat16", "float32", "float64"}


def documented(mode: str, tensor: torch.Tensor) -> str:
    """The checksum by its definition: contiguous bytes in logical order."""
    plain = tensor.resolve_conj().resolve_neg().contiguous()
    data = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
    if mode == "md5":
        return f"{zlib.crc32(data):08x}"
    data += bytes(-len(data) % 8)
    word = 0
    for start in range(0, len(data), 8):
        word ^= int.from_bytes(data[start : start + 8], "little")
    return f"0x{word:016x}"


def read(entry: object) -> dict[str, object]:
    return dict(json.loads(orjson.dumps(entry)))


@pytest.mark.parametrize("mode", MODES)
def test_checksums_equal_the_peers_wherever_it_has_one(mode: str) -> None:
    encoder = ValueEncoder(summary_mode=mode)
    assert RECORDED[mode].keys() == CASES.keys()
    for case, value in RECORDED[mode].items():
        if is_checksum(value):
            assert read(encoder.encode(CASES[case]))["md5"] == value, case


@pytest.mark.parametrize("mode", MODES)
def test_checksums_are_the_documented_ones_in_every_case(mode: str) -> None:
    encoder = ValueEncoder(summary_mode=mode)
    for case, tensor in CASES.items():
        assert read(encoder.encode(tensor))["md5"] == documented(mode, tensor), case


def test_what_the_peer_has_no_checksum_of() -> None:
    missing = {mode: {case for case, value in RECORDED[mode].items() if not is_checksum(value)} for mode in MODES}
    conjugated = {f"{dtype} conjugated" for dtype in COMPLEX}
    single = {f"{dtype} 0-dim" for dtype in COMPLEX | FLOAT}
    empty = {f"{dtype} empty" for dtype in DTYPES}
    assert missing["md5"] == conjugated
    assert missing["xor"] == conjugated | single | empty | {case for case in CASES if case.split()[0] in FLOAT8}
