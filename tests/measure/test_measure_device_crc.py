"""CRC-32 by torch operations, as devices without a kernel for it compute it, equals zlib's."""

from __future__ import annotations

import zlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from msprobe.measure.device_crc import WIDTH, CrcFolder, finish_crc, multiples, power_of_x, product

FOLDER = CrcFolder()
EDGE = 4 * WIDTH


def noise(size: int) -> torch.Tensor:
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(size))


def crc_of(pieces: list[torch.Tensor]) -> int:
    message = FOLDER.message(pieces)
    assert message.numel() < EDGE + 4
    return finish_crc(message.numpy().tobytes(), sum(piece.numel() for piece in pieces))


@pytest.mark.parametrize(
    "size", [0, 1, 3, 4, 100, EDGE, EDGE + 3, EDGE + 4, EDGE + 5, 2 * EDGE, 2 * EDGE + 4, 100_003, 1 << 20]
)
def test_any_size_equals_zlib(size: int) -> None:
    assert crc_of([noise(size)]) == zlib.crc32(noise(size).numpy())


@given(st.lists(st.sampled_from([0, 1, 2, 7, 8, 1000, EDGE - 1, EDGE, EDGE + 8, 9999]), min_size=1, max_size=5))
@settings(max_examples=25, deadline=None)
def test_pieces_count_as_one_content(sizes: list[int]) -> None:
    pieces = [noise(size) for size in sizes]
    before = [piece.clone() for piece in pieces]
    assert crc_of(pieces) == zlib.crc32(torch.cat(before).numpy())
    assert all(torch.equal(piece, copy) for piece, copy in zip(pieces, before, strict=True)), "written to"


def test_a_message_has_memory_of_its_own() -> None:
    content = noise(10)
    message = FOLDER.message([content])
    content.zero_()
    assert finish_crc(message.numpy().tobytes(), 10) == zlib.crc32(noise(10).numpy())


def test_the_number_of_operations_grows_with_the_logarithm() -> None:
    def launches(size: int) -> int:
        FOLDER.message([noise(size)])  # the tables are made once
        content = noise(size)
        with torch.autograd.profiler.profile() as profile:
            FOLDER.message([content])
        return len([event for event in profile.function_events if event.cpu_parent is None])

    small, large = launches(1 << 14), launches(1 << 20)
    assert large - small <= 6 * (small - launches(1 << 13)) + 6


def test_tables_hold_products() -> None:
    factor = power_of_x(32 * 4096)
    table = multiples(factor)
    for half, number in ((0, 1), (0, 0xFFFF), (1, 0x8000), (1, 0x1234), (0, 0)):
        assert int(table[half, number]) == product(number << 16 * half, factor)
