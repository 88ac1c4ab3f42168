"""Checksums: of the logical content, compatible where it matters, and the same from every kernel."""

from __future__ import annotations

import math
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from msprobe.measure import checksums
from msprobe.measure.checksums import checksum_cpu
from msprobe.measure.encode import ValueEncoder

MODES = ["md5", "xor", "hash"]
DTYPES = [
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float64,
    torch.int8,
    torch.int64,
    torch.uint16,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
]


def content(tensor: torch.Tensor) -> bytes:
    copy = tensor.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return copy.reshape(-1).view(torch.uint8).numpy().tobytes()


def word_list(data: bytes) -> list[int]:
    data += bytes(-len(data) % 8)
    return [int(word) for word in np.frombuffer(data, "<u8")]


def xor_of(data: bytes) -> str:
    value = 0
    for word in word_list(data):
        value ^= word
    return f"0x{value:016x}"


def hash_of(data: bytes, shape: tuple[int, ...]) -> str:
    """The definition, in integers of any size."""
    mask, golden = 2**64 - 1, 0x9E3779B97F4A7C15

    def fmix(x: int) -> int:
        x &= mask
        x = (x ^ x >> 33) * 0xFF51AFD7ED558CCD & mask
        x = (x ^ x >> 33) * 0xC4CEB9FE1A85EC53 & mask
        return x ^ x >> 33

    body = sum(fmix(word + index * golden) for index, word in enumerate(word_list(data), 1))
    salt = fmix(len(data) + 1)
    for size in shape:
        salt = fmix(salt ^ (size + golden & mask))
    return f"0x{fmix(body & mask ^ salt):016x}"


def torch_text(mode: str, tensor: torch.Tensor) -> str:
    """The same checksum by the torch reference alone."""
    if mode == "md5":
        return checksums.crc32((tensor,))
    if mode == "xor":
        return checksums.hex64(checksums.xor_tensor((tensor,)).item())
    word = checksums.hash_body(tensor).item()
    return checksums.hex64(checksums.finish_hash(word, tensor.numel() * tensor.itemsize, tensor.shape))


def expected(mode: str, tensor: torch.Tensor) -> str:
    data = content(tensor)
    if mode == "md5":
        return f"{zlib.crc32(data):08x}"
    return xor_of(data) if mode == "xor" else hash_of(data, tuple(tensor.shape))


@st.composite
def views(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(1, 7), min_size=1, max_size=4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    tensor = torch.randint(0, 2, shape, generator=generator) * torch.randint(1, 99, shape, generator=generator)
    tensor = tensor.to(dtype)
    for dim, size in enumerate(shape):
        start = draw(st.integers(0, size - 1))
        tensor = tensor.narrow(dim, start, size - start)
        tensor = tensor[(slice(None),) * dim + (slice(None, None, draw(st.integers(1, 2))),)]
    tensor = tensor.permute(draw(st.permutations(range(tensor.dim()))))
    return tensor.conj() if dtype.is_complex and draw(st.booleans()) else tensor


@pytest.mark.parametrize("mode", MODES)
@given(tensor=views())
@settings(max_examples=100, deadline=None)
def test_every_kernel_follows_the_definition_on_any_stride(mode: str, tensor: torch.Tensor) -> None:
    assert checksum_cpu(mode, (tensor,)) == expected(mode, tensor)
    assert torch_text(mode, tensor) == expected(mode, tensor)
    assert checksum_cpu(mode, (tensor.resolve_conj().contiguous(),)) == expected(mode, tensor)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [lambda t: t, lambda t: t.t(), lambda t: t[:, ::3], lambda t: t[1:, 1:]])
@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.float32], ids=str)
def test_content_of_many_pieces_keeps_its_word_boundaries(mode: str, make, dtype: torch.dtype) -> None:
    tensor = make((torch.arange(301 * 1001) % 119).view(301, 1001).to(dtype))
    data = content(tensor)
    reference = {"md5": f"{zlib.crc32(data):08x}", "xor": xor_of(data), "hash": hash_of(data, tuple(tensor.shape))}
    assert checksum_cpu(mode, (tensor,)) == reference[mode]
    assert torch_text(mode, tensor) == reference[mode]


def test_known_xor_values() -> None:
    assert checksum_cpu("xor", (torch.ones(4, 3),)) == "0x0000000000000000"
    assert checksum_cpu("xor", (torch.tensor([1, 2, 3], dtype=torch.int8),)) == "0x0000000000030201"
    assert checksum_cpu("xor", (torch.full((4,), 60000.0, dtype=torch.float16),)) == "0x7b537b537b537b53"
    assert checksum_cpu("xor", (torch.tensor(2.0),)) == "0x0000000040000000"


@pytest.mark.parametrize("mode", MODES)
def test_empty_tensors_have_a_checksum(mode: str) -> None:
    entry = ValueEncoder(summary_mode=mode).encode(torch.empty(0, 3))
    assert entry["md5"] == expected(mode, torch.empty(0, 3))
    assert entry["md5"] == "00000000" or mode != "md5"


def test_hash_tells_apart_what_xor_cannot() -> None:
    base = torch.tensor([1.0, 2.0, 3.0, 4.0])
    others = [
        base.flip(0),
        -base,
        torch.zeros(4),
        torch.ones(4),
        base.repeat(2),
        base.view(2, 2),
        base.view(1, 4),
        base.double(),
        torch.tensor([1.0, 2.0, 3.0, 4.0, 0.0]),
    ]
    found = {checksum_cpu("hash", (tensor,)) for tensor in [base, *others]}
    assert len(found) == 1 + len(others)


@pytest.mark.parametrize("mode", MODES)
def test_nan_payload_and_negative_zero_count(mode: str) -> None:
    assert checksum_cpu(mode, (torch.tensor([0.0]),)) != checksum_cpu(mode, (torch.tensor([-0.0]),))
    tensor = torch.tensor([math.nan])
    assert checksum_cpu(mode, (tensor,)) == expected(mode, tensor)


@pytest.mark.parametrize("mode", ["md5", "hash"])
def test_sparse_checksums_see_positions(mode: str) -> None:
    encoder = ValueEncoder(summary_mode=mode)
    first, second = torch.tensor([[0.0, 1.5], [0.0, 0.0]]), torch.tensor([[0.0, 0.0], [1.5, 0.0]])
    for convert in (torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr):
        assert encoder.encode(convert(first))["md5"] != encoder.encode(convert(second))["md5"]
        assert encoder.encode(convert(first))["md5"] == encoder.encode(convert(first.clone()))["md5"]


def test_a_view_at_an_odd_offset_has_the_checksum_of_its_copy() -> None:
    base = torch.arange(64, dtype=torch.int8)
    for offset in range(9):
        view = base[offset : offset + 40]
        for mode in MODES:
            assert checksum_cpu(mode, (view,)) == torch_text(mode, view) == expected(mode, view.clone())
