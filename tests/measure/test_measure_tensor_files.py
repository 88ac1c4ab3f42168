"""Tensor files: their own elements, nothing else, readable without trust."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch

from msprobe.measure.encode import ValueEncoder
from msprobe.measure.tensor_files import OwnElements, own_elements

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def roundtrip(tensor: torch.Tensor) -> torch.Tensor:
    stream = io.BytesIO()
    OwnElements(tensor)(stream)
    stream.seek(0)
    return torch.load(stream, weights_only=True)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4),
        torch.randn(3, 4).t(),
        torch.randn(30)[::7],
        torch.tensor(1.5),
        torch.arange(5),
        torch.tensor([True, False]),
        torch.randn(4).bfloat16(),
        torch.randn(4).to(torch.float8_e4m3fn),
        torch.randn(4, dtype=torch.complex64),
        torch.randn(4, dtype=torch.complex64).conj(),
        torch.randn(4, dtype=torch.complex64).conj().imag,
        torch.ones(3).to_sparse(),
        torch.ones(3, 3).to_sparse_csr(),
        torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
        torch.ones(()).expand(7),
    ],
    ids=lambda t: f"{t.dtype}-{t.layout}-{tuple(t.shape)}",
)
def test_the_file_holds_exactly_the_values(tensor: torch.Tensor) -> None:
    loaded = roundtrip(tensor)
    assert loaded.dtype == tensor.dtype
    assert loaded.layout == tensor.layout
    if tensor.layout is torch.strided and not tensor.is_quantized:
        assert loaded.is_contiguous()
        assert not loaded.is_conj()
        assert not loaded.is_neg()
        plain = tensor.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        assert torch.equal(loaded.reshape(-1).view(torch.uint8), plain.reshape(-1).view(torch.uint8))
    else:
        read = torch.Tensor.dequantize if tensor.is_quantized else torch.Tensor.to_dense
        assert torch.equal(read(loaded), read(tensor))


def test_a_view_does_not_drag_its_whole_storage_along(tmp_path: Path) -> None:
    view = torch.zeros(1_000_000)[100:200]
    target = tmp_path / "view.pt"
    OwnElements(view)(target)
    assert target.stat().st_size < 4096


def test_a_parameter_and_a_subclass_are_saved_as_plain_tensors(tmp_path: Path) -> None:
    class Mine(torch.Tensor):
        pass

    saved = []
    encoder = ValueEncoder(task="tensor", write_tensor=lambda name, save: saved.append(save) or name)
    encoder.encode(torch.nn.Parameter(torch.ones(2)), "a")
    encoder.encode(torch.ones(2).as_subclass(Mine), "b")
    for save in saved:
        stream = io.BytesIO()
        save(stream)
        stream.seek(0)
        loaded = torch.load(stream, weights_only=True)
        assert type(loaded) is torch.Tensor
        assert not loaded.requires_grad


def test_held_values_survive_an_in_place_change() -> None:
    tensor = torch.ones(3)
    save = OwnElements(tensor)
    save.hold()
    tensor.zero_()
    stream = io.BytesIO()
    save(stream)
    stream.seek(0)
    assert torch.equal(torch.load(stream), torch.ones(3))


def test_wrapped_tensors_are_saved_from_inside_a_transform() -> None:
    saved = []
    encoder = ValueEncoder(task="tensor", write_tensor=lambda name, save: saved.append(save) or save.hold() or name)
    torch.vmap(lambda x: (encoder.encode(x, "x"), x)[1])(torch.arange(6.0).view(2, 3))
    stream = io.BytesIO()
    saved[0](stream)
    stream.seek(0)
    assert torch.equal(torch.load(stream), torch.arange(6.0).view(2, 3))


@pytest.mark.parametrize("make", [lambda t: t, lambda t: t.t(), lambda t: t[:1], lambda t: t.to_sparse()])
def test_the_saved_tensor_shares_no_memory_so_that_autograd_may_still_add_in_place(make) -> None:
    tensor = make(torch.ones(3, 4))
    own = own_elements(tensor)
    if tensor.layout is torch.sparse_coo:
        assert own._values().data_ptr() != tensor._values().data_ptr()
    else:
        assert own.data_ptr() != tensor.data_ptr()


@pytest.mark.parametrize("name", [*(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)), "quint4x2"])
def test_dtypes_that_torch_cannot_save_are_stored_as_their_bytes(name: str) -> None:
    written: dict[str, io.BytesIO] = {}

    def write(file_name: str, save: OwnElements) -> str:
        save(written.setdefault(file_name, io.BytesIO()))
        return file_name

    content = torch.arange(6, dtype=torch.uint8)
    if name == "quint4x2":
        tensor = torch.empty(12, dtype=torch.quint4x2)
        torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).copy_(content)
    else:
        tensor = content.view(getattr(torch, name))
    entry = ValueEncoder(task="tensor", write_tensor=write).encode(tensor, "x")
    assert entry["data_name"] == "x.pt"
    assert entry["data_dtype"] == "torch.uint8"
    written["x.pt"].seek(0)
    assert torch.equal(torch.load(written["x.pt"], weights_only=True), content)
