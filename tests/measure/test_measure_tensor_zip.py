"""Tensor files written from a copy: the same file as `torch.save` makes, for every dtype."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from msprobe.measure.host_copies import KEPT, HostCopies, rounded
from msprobe.measure.tensor_files import FileMaker
from msprobe.measure.tensor_zip import ZipTemplates, pickled

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

NAMES = (
    "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64 "
    "complex32 complex64 complex128 "
    "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2"
)
DTYPES = [getattr(torch, name) for name in NAMES.split() if hasattr(torch, name)]
MAKER = FileMaker()


def held_file(tensor: torch.Tensor) -> bytes:
    content = MAKER.content(tensor)
    content.hold()
    pieces = content.pieces()
    assert pieces is not None
    file = b"".join(pieces)
    content.release()
    return file


def raw(tensor: torch.Tensor) -> bytes:
    plain = tensor.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return bytes(plain.untyped_storage())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_torch_reads_back_the_same_tensor(dtype: torch.dtype, tmp_path_factory, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 5), max_size=4)))
    count = torch.Size(shape).numel()
    bits = data.draw(st.binary(min_size=count * dtype.itemsize, max_size=count * dtype.itemsize))
    if dtype is torch.bool:
        bits = bytes(byte & 1 for byte in bits)
    flat = torch.frombuffer(bytearray(bits), dtype=torch.uint8) if bits else torch.empty(0, dtype=torch.uint8)
    tensor = flat.view(dtype).view(shape)
    file = held_file(tensor)
    assert zipfile.ZipFile(io.BytesIO(file)).testzip() is None
    path: Path = tmp_path_factory.mktemp("zip") / "t.pt"
    path.write_bytes(file)
    for loaded in (torch.load(path, weights_only=True), torch.load(path, weights_only=True, mmap=bool(count))):
        assert (loaded.dtype, loaded.shape, loaded.stride()) == (dtype, tensor.shape, tensor.contiguous().stride())
        assert not loaded.requires_grad
        assert bytes(loaded.untyped_storage()) == bits


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4), (0, 2)], ids=str)
def test_the_pickle_is_the_one_that_torch_writes(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    stream = io.BytesIO()
    torch.save(torch.empty(shape, dtype=dtype), stream)
    assert zipfile.ZipFile(stream).read("archive/data.pkl") == pickled(dtype, shape)


def test_elements_start_at_a_multiple_of_64_bytes() -> None:
    for shape in [(), (1,), (12345, 3), (1,) * 40]:
        template = ZipTemplates().get(torch.float32, shape)
        assert len(template.before) % 64 == 0


CASES = {
    "transposed": lambda: torch.randn(3, 4).t(),
    "every seventh": lambda: torch.randn(40)[1::7],
    "expanded": lambda: torch.randn(1, 3).expand(5, 3),
    "conjugate": lambda: torch.randn(4, dtype=torch.complex64).conj(),
    "negative view": lambda: torch.randn(4, dtype=torch.complex64).conj().imag,
    "with gradient": lambda: torch.randn(4, 2, requires_grad=True),
    "channels last": lambda: torch.randn(1, 2, 3, 4).to(memory_format=torch.channels_last),
    "part of a storage": lambda: torch.randn(1000)[10:20],
}


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_views_are_stored_as_their_own_elements(make) -> None:
    tensor = make()
    for _ in range(2):  # the second time the template is known
        file = held_file(tensor)
        assert len(file) < 1300 + tensor.numel() * tensor.itemsize
        loaded = torch.load(io.BytesIO(file), weights_only=True)
        assert bytes(loaded.untyped_storage()) == raw(tensor.detach())


@given(st.binary(min_size=16, max_size=64).filter(lambda text: len(text) % 4 == 0), st.integers(0, 127))
@settings(max_examples=60, deadline=None)
def test_fingerprints_agree_for_equal_content_only(content: bytes, bit: int) -> None:
    tensor = torch.frombuffer(bytearray(content), dtype=torch.int32)
    spread = torch.stack((tensor, tensor), 1)[:, 0]
    own = MAKER.content(tensor).fingerprint()
    assert own is not None
    assert MAKER.content(spread).fingerprint() == own
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    assert MAKER.content(torch.frombuffer(changed, dtype=torch.int32)).fingerprint() != own
    assert MAKER.content(tensor.view(1, -1)).fingerprint() != own
    assert MAKER.content(tensor.view(torch.float32)).fingerprint() != own


@pytest.mark.parametrize(
    "make", [lambda: torch.ones(3).to_sparse(), lambda: torch.randn(4, dtype=torch.complex64).conj()]
)
def test_what_is_not_plain_memory_has_no_fingerprint(make) -> None:
    assert MAKER.content(make()).fingerprint() is None


def test_a_sparse_tensor_is_held_as_a_clone_and_its_size_is_known() -> None:
    tensor = torch.ones(3).to_sparse()
    content = MAKER.content(tensor)
    assert content.host_bytes == 3 * 8 + 3 * 4
    content.hold()
    assert content.pieces() is None
    stream = io.BytesIO()
    content(stream)
    stream.seek(0)
    assert torch.equal(torch.load(stream, weights_only=True).to_dense(), torch.ones(3))


@given(st.integers(0, 1 << 40))
def test_a_piece_of_memory_is_long_enough_and_at_most_a_quarter_too_long(nbytes: int) -> None:
    assert nbytes <= rounded(nbytes) <= max(nbytes * 1.25, 4096)
    assert rounded(rounded(nbytes)) == rounded(nbytes)


def test_memory_that_was_given_back_is_used_again_up_to_a_limit() -> None:
    copies = HostCopies()
    first = copies.take(5000)
    copies.give_back(first)
    assert copies.take(4900) is first
    copies.give_back(copies.take(KEPT + 1))
    assert copies._free_bytes == 0


def test_a_released_content_refuses_to_be_written() -> None:
    content = MAKER.content(torch.ones(2))
    content.hold()
    content.release()
    with pytest.raises(ValueError, match="released"):
        content(io.BytesIO())
