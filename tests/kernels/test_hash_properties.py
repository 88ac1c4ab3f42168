"""What the hash tells apart, and that it depends on nothing but content and shape."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from msprobe.kernels import _native

from msprobe.measure import checksums
from msprobe.measure.quiet import Quiet

DTYPES = [
    torch.int8,
    torch.uint16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]
SEEDS = st.integers(0, 2**32)
SIZES = st.integers(2, 300)


def content_of(dtype: torch.dtype, numel: int, seed: int) -> torch.Tensor:
    """Numbers of either sign, without zeros."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(1, 120, (numel,), generator=generator)
    if dtype.is_signed:
        values = values * (torch.randint(0, 2, (numel,), generator=generator) * 2 - 1)
    return values.to(dtype)


def native_hash(tensor: torch.Tensor) -> str:
    with Quiet():
        return checksums.checksum_native(_native, "hash", (tensor,))


def torch_hash(tensor: torch.Tensor) -> str:
    with Quiet():
        word = int(checksums.hash_body(tensor).item())
        return checksums.hex64(checksums.finish_hash(word, tensor.numel() * tensor.itemsize, tensor.shape))


def hash_of(tensor: torch.Tensor) -> str:
    """The hash, on which the native kernel and the torch reference have to agree."""
    found = native_hash(tensor)
    assert found == torch_hash(tensor)
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=25, deadline=None)
@given(numel=SIZES, seed=SEEDS)
def test_a_permutation_changes_it(dtype, numel, seed):
    tensor = content_of(dtype, numel, seed)
    order = torch.randperm(numel, generator=torch.Generator().manual_seed(seed))
    assume(not torch.equal(tensor[order], tensor))
    assert hash_of(tensor[order]) != hash_of(tensor)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=25, deadline=None)
@given(numel=SIZES, seed=SEEDS, data=st.data())
def test_two_elements_that_change_places_change_it(dtype, numel, seed, data):
    tensor = content_of(dtype, numel, seed)
    first, second = data.draw(st.tuples(st.integers(0, numel - 1), st.integers(0, numel - 1)))
    swapped = tensor.clone()
    swapped[first], swapped[second] = tensor[second], tensor[first]
    assume(not torch.equal(swapped, tensor))
    assert hash_of(swapped) != hash_of(tensor)


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype.is_signed], ids=str)
@settings(max_examples=25, deadline=None)
@given(numel=SIZES, seed=SEEDS, data=st.data())
def test_the_sign_of_one_element_or_of_all_changes_it(dtype, numel, seed, data):
    tensor = content_of(dtype, numel, seed)
    one = tensor.clone()
    place = data.draw(st.integers(0, numel - 1))
    one[place] = -one[place]
    assert len({hash_of(tensor), hash_of(-tensor), hash_of(one)}) == 3


@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool], ids=str)
@settings(max_examples=20, deadline=None)
@given(shape=st.lists(st.integers(1, 9), min_size=1, max_size=3))
def test_zeros_and_ones_differ_and_so_do_their_numbers(dtype, shape):
    zeros, ones = torch.zeros(shape, dtype=dtype), torch.ones(shape, dtype=dtype)
    longer = [shape[0] + 1, *shape[1:]]
    tensors = [zeros, ones, torch.zeros(longer, dtype=dtype), torch.ones(longer, dtype=dtype)]
    assert len({hash_of(tensor) for tensor in tensors}) == 4


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=25, deadline=None)
@given(numel=SIZES, seed=SEEDS)
@example(numel=2, seed=383)
def test_duplication_changes_it(dtype, numel, seed):
    """XOR is zero of anything taken twice."""
    tensor = content_of(dtype, numel, seed)
    repeated = [tensor, tensor.repeat(2), tensor.repeat(3), tensor.expand(2, -1)]
    if not torch.equal(tensor.repeat_interleave(2), tensor.repeat(2)):  # the same where all elements are equal
        repeated.append(tensor.repeat_interleave(2))
    assert len({hash_of(each) for each in repeated}) == len(repeated)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, sizes=st.tuples(st.integers(2, 6), st.integers(2, 6), st.integers(2, 6)))
def test_every_shape_of_the_same_content_has_its_own(dtype, seed, sizes):
    a, b, c = sizes
    tensor = content_of(dtype, a * b * c, seed)
    shapes = {(a * b * c,), (a * b, c), (a, b * c), (a, b, c), (1, a, b, c), (a, 1, b, c), (a * b * c, 1), (c, b, a)}
    assert len({hash_of(tensor.reshape(shape)) for shape in shapes}) == len(shapes)


@st.composite
def strided(draw: st.DrawFn, dtype: torch.dtype) -> torch.Tensor:
    """A view with steps, offsets, swapped and repeated dimensions."""
    shape = draw(st.lists(st.integers(1, 9), min_size=0, max_size=4))
    steps = [draw(st.integers(1, 3)) for _ in shape]
    base = [size * step + 1 for size, step in zip(shape, steps, strict=True)]
    tensor = content_of(dtype, torch.Size(base).numel(), draw(SEEDS)).reshape(base)
    for dim, step in enumerate(steps):
        tensor = tensor.narrow(dim, 1, base[dim] - 1).unfold(dim, 1, step).squeeze(-1)
    tensor = tensor.permute(draw(st.permutations(range(tensor.dim()))))
    return tensor.expand(3, *tensor.shape) if draw(st.booleans()) else tensor


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_equal_content_has_the_same_hash_under_any_stride(dtype, data):
    tensor = data.draw(strided(dtype))
    assert hash_of(tensor) == hash_of(tensor.contiguous()) == hash_of(tensor.clone().reshape(tensor.shape))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
@settings(max_examples=25, deadline=None)
@given(numel=SIZES, seed=SEEDS)
def test_pending_conjugates_and_negatives_count_as_done(dtype, numel, seed):
    tensor = content_of(dtype, numel, seed) * (1 + 2j)
    for pending in (tensor.conj(), tensor.conj().imag, tensor[::2].conj()):
        done = pending.resolve_conj().resolve_neg().clone()
        with Quiet():
            assert checksums.checksum_cpu("hash", (pending,)) == torch_hash(pending) == native_hash(done)
    with Quiet():
        assert checksums.checksum_cpu("hash", (tensor.conj(),)) != native_hash(tensor)
