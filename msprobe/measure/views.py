"""Every kind of tensor -> one plain view of its numbers, or the reason why there is none.

A view never copies more than a bounded piece and never changes the tensor it looks at. Kinds are tried in the order
of `_KINDS`; whatever none of them claims is an ordinary strided tensor.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._C import _functorch as functorch

from msprobe.measure.dtypes import DtypeInfo, describe_dtype

_SUB_BYTE = re.compile(r"torch\.u?int[1-7]")

#: Uncoalesced sparse tensors up to this many stored values are coalesced for their statistics.
COALESCE_LIMIT = 1 << 16
#: oneDNN tensors hide their memory; up to this many elements they are converted as a whole.
MKLDNN_LIMIT = 1 << 24

_SPARSE_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
_ORDINARY = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


@dataclass(frozen=True, slots=True)
class TensorView:
    """What to write about a tensor and where its numbers are.

    Attributes
    ----------
    type_name, dtype, shape, requires_grad
        As written in a dump. Symbolic sizes are text.
    info
        Description of the dtype of `data`.
    data
        Strided tensor whose elements the statistics describe, or None with a `reason`.
    parts
        Strided tensors whose bytes, one after the other, are the content for checksums.
    stored
        Tensor to save in a file, or None.
    reason
        Why there are no numbers.
    extra
        More entries: the layout and what was measured when it is not every element, the mesh of a DTensor.
    """

    type_name: str
    dtype: str
    shape: list[int | str]
    requires_grad: bool
    info: DtypeInfo
    data: torch.Tensor | None
    parts: tuple[torch.Tensor, ...] = ()
    stored: torch.Tensor | None = None
    reason: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)


def type_name(tensor: torch.Tensor) -> str:
    """Return the type as written in a dump: classes of torch by full name, classes of users as ``torch.Tensor``."""
    kind = type(tensor)
    if kind not in _ORDINARY and _is_torch(kind):
        return f"{kind.__module__}.{kind.__qualname__}"
    return "torch.Tensor"


def plain_shape(tensor: torch.Tensor) -> list[int | str]:
    """Return the sizes; those that are not known while tracing are text."""
    return [size if type(size) is int else str(size) for size in tensor.shape]


def view_tensor(tensor: torch.Tensor) -> TensorView:
    """Return the view of any tensor. Call it inside `quiet.Quiet`.

    Raises
    ------
    ValueError, RuntimeError
        If the tensor refuses to tell its shape or dtype (for example an uninitialised lazy parameter).
    """
    for applies, build in _KINDS:
        if applies(tensor):
            return build(tensor)
    return _strided(tensor)


def _without_numbers(tensor: torch.Tensor, reason: str, parts: tuple[torch.Tensor, ...] = ()) -> TensorView:
    return TensorView(
        type_name(tensor),
        str(tensor.dtype),
        plain_shape(tensor),
        tensor.requires_grad,
        describe_dtype(tensor.dtype),
        None,
        parts,
        reason=reason,
    )


def _wrapped(tensor: torch.Tensor, inner: TensorView, **extra: Any) -> TensorView:
    """Return the view `inner` under the type and gradient flag of the tensor around it."""
    return replace(
        inner,
        type_name=type_name(tensor),
        requires_grad=tensor.requires_grad,
        extra={**inner.extra, **extra},
    )


def _strided(tensor: torch.Tensor) -> TensorView:
    if tensor.device.type == "meta":
        return _without_numbers(tensor, "meta tensor: no data")
    if tensor.numel() == 0:
        return _without_numbers(tensor, "empty tensor", (tensor.detach(),))
    # A view into a freed storage has address 0 + offset, so the offset is taken off before the test.
    if tensor.data_ptr() == tensor.storage_offset() * tensor.itemsize:
        return _without_numbers(tensor, "no storage behind the tensor (freed or sharded)")
    plain = tensor.detach()
    if type(plain) is not torch.Tensor:
        plain = plain.as_subclass(torch.Tensor)
    info = describe_dtype(tensor.dtype)
    if info.kind == "opaque":
        return replace(
            _without_numbers(tensor, f"{info.name}: bits without arithmetic meaning"), stored=_storable(plain)
        )
    if info.kind == "packed":
        return replace(
            _without_numbers(tensor, f"{info.name}: several numbers in one byte"), stored=_packed_bytes(plain)
        )
    content = stored_integers(plain) if info.kind == "quantised" else plain
    return TensorView(
        type_name(tensor), info.name, plain_shape(tensor), tensor.requires_grad, info, plain, (content,), plain
    )


def _storable(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor as it can be copied and saved: integers of 1 to 7 bits, one in a byte, as their bytes."""
    return tensor.view(torch.uint8) if _SUB_BYTE.fullmatch(str(tensor.dtype)) else tensor


def _packed_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor that has several numbers in one, which torch cannot save."""
    storage = tensor.untyped_storage()
    view = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return view.set_(storage, 0, (storage.nbytes(),), (1,))


def stored_integers(tensor: torch.Tensor) -> torch.Tensor:
    """Return the integers of a quantised tensor as a view of its own memory."""
    dtype = {torch.qint8: torch.int8, torch.quint8: torch.uint8, torch.qint32: torch.int32}[tensor.dtype]
    view = torch.empty(0, dtype=dtype, device=tensor.device)
    return view.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def _functorch_wrapper(tensor: torch.Tensor) -> TensorView:
    name = "BatchedTensor" if functorch.is_batchedtensor(tensor) else "GradTrackingTensor"
    inner = tensor
    while functorch.is_functorch_wrapped_tensor(inner):
        inner = functorch.get_unwrapped(inner)
    return replace(view_tensor(inner), type_name=name, requires_grad=tensor.requires_grad)


def _functional(tensor: torch.Tensor) -> TensorView:
    return _without_numbers(tensor, "functional tensor: no data while tracing")


def _sparse_coo(tensor: torch.Tensor) -> TensorView:
    coalesced, note = tensor.detach(), "stored values"
    if not tensor.is_coalesced():
        if tensor._nnz() <= COALESCE_LIMIT:
            coalesced = coalesced.coalesce()
        else:
            note = "stored values, not coalesced"
    return _sparse(tensor, (coalesced._indices(), coalesced._values()), note)


def _sparse_compressed(tensor: torch.Tensor) -> TensorView:
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        indices = (tensor.crow_indices(), tensor.col_indices())
    else:
        indices = (tensor.ccol_indices(), tensor.row_indices())
    return _sparse(tensor, (*indices, tensor.values()), "stored values")


def _sparse(tensor: torch.Tensor, parts: tuple[torch.Tensor, ...], note: str) -> TensorView:
    return replace(
        _wrapped(tensor, _strided(parts[-1]), layout=str(tensor.layout), measured=note),
        shape=plain_shape(tensor),
        parts=tuple(part.detach() for part in parts),
        stored=tensor.detach(),
    )


def _mkldnn(tensor: torch.Tensor) -> TensorView:
    if tensor.numel() > MKLDNN_LIMIT:
        return _without_numbers(tensor, f"oneDNN layout of more than {MKLDNN_LIMIT} elements")
    return _wrapped(tensor, _strided(tensor.detach().to_dense()), layout=str(tensor.layout))


def _nested(tensor: Any) -> TensorView:
    if tensor.layout is torch.strided:
        values, bounds = tensor.detach().values(), tensor._nested_tensor_size()
    else:
        values, bounds = tensor._values.detach(), tensor._offsets
    inner = view_tensor(values)
    if inner.parts:
        inner = replace(inner, parts=(bounds, *inner.parts))
    return _wrapped(tensor, inner, layout=str(tensor.layout), measured="values of the nested tensor")


def _dtensor(tensor: Any) -> TensorView:
    return _wrapped(
        tensor,
        view_tensor(tensor._local_tensor),
        device_mesh=tensor.device_mesh.mesh.tolist(),
        placements=[_placement(placement) for placement in tensor.placements],
    )


def _placement(placement: Any) -> dict[str, dict[str, Any]]:
    """Return ``{"Shard": {"dim": 0}}`` and the like: the class and what distinguishes its instances."""
    names = ("dim", "split_factor", "reduce_op")
    fields = {name: getattr(placement, name) for name in names if hasattr(placement, name)}
    plain = {name: value if isinstance(value, int | str) else str(value) for name, value in fields.items()}
    return {type(placement).__name__.lstrip("_"): plain}


def _zero_tensor(tensor: torch.Tensor) -> TensorView:
    # A forward-mode tangent that is zero has no memory: any expanded zero has the same statistics.
    zeros = torch.zeros((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)
    return _wrapped(tensor, _strided(zeros))


def _is_complete(tensor: Any) -> bool:
    return _IS_ASYNCHRONOUS(tensor) and bool(tensor.completed)


def _complete(tensor: Any) -> TensorView:
    return _wrapped(tensor, view_tensor(tensor.elem))


_UNREADABLE = {
    "FakeTensor": "fake tensor: no data",
    "FunctionalTensor": "functional tensor: no data while tracing",
    "AsyncCollectiveTensor": "result of a collective that is still running",
}


def _unreadable(tensor: torch.Tensor) -> TensorView:
    names = (base.__name__ for base in type(tensor).__mro__)
    return _without_numbers(tensor, next(_UNREADABLE[name] for name in names if name in _UNREADABLE))


def _wrapper(tensor: Any) -> TensorView:
    """View a subclass that holds other tensors instead of memory, if it holds exactly one of the same shape."""
    names = list(tensor.__tensor_flatten__()[0])
    inner = getattr(tensor, names[0]) if len(names) == 1 else None
    if inner is None or inner.shape != tensor.shape:
        return _without_numbers(tensor, f"{type(tensor).__name__} holds other tensors: {', '.join(names)}")
    return _wrapped(tensor, view_tensor(inner), measured=names[0])


def _is_torch(kind: type) -> bool:
    return kind.__module__ == "torch" or kind.__module__.startswith("torch.")


def _is_class(*names: str) -> Callable[[Any], bool]:
    """Return a test for classes of torch by name: importing them would load half of torch for nothing."""

    def applies(tensor: Any) -> bool:
        kind = type(tensor)
        return kind not in _ORDINARY and any(base.__name__ in names and _is_torch(base) for base in kind.__mro__)

    return applies


def _is_wrapper(tensor: Any) -> bool:
    return hasattr(type(tensor), "__tensor_flatten__") and not tensor.data_ptr()


def _is_functorch(tensor: Any) -> bool:
    return bool(functorch.is_functorch_wrapped_tensor(tensor))


def _is_zero(tensor: Any) -> bool:
    return bool(tensor._is_zerotensor())


_IS_ASYNCHRONOUS = _is_class("AsyncCollectiveTensor")

#: (does this kind apply?, how to view it), first match wins: wrappers before layouts.
_KINDS: tuple[tuple[Callable[[Any], bool], Callable[[Any], TensorView]], ...] = (
    (_is_functorch, _functorch_wrapper),
    (_is_complete, _complete),
    (_is_class(*_UNREADABLE), _unreadable),
    (_is_class("DTensor"), _dtensor),
    (torch._is_functional_tensor, _functional),
    (lambda tensor: tensor.is_nested, _nested),
    (lambda tensor: tensor.device.type == "meta", _strided),
    (lambda tensor: tensor.layout is torch.sparse_coo, _sparse_coo),
    (lambda tensor: tensor.layout in _SPARSE_COMPRESSED, _sparse_compressed),
    (lambda tensor: tensor.layout is torch._mkldnn, _mkldnn),
    (_is_zero, _zero_tensor),
    (_is_wrapper, _wrapper),
)
