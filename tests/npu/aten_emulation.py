"""Operators of the fake NPU: each runs the CPU kernel on a CPU tensor that shares the memory of the NPU tensor.

Nothing here reproduces Ascend numerics. What is real: torch_npu's tensors, allocator, streams, autograd keys and
OpCommand. Views, allocation and metadata stay with torch_npu; every other ``aten`` operator that has an NPU kernel is
replaced.
"""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

#: What torch_npu does itself without starting an operator.
_NATIVE = tuple(
    f"aten::{name}"
    for name in (
        "empty new_empty set_ view as_strided _reshape_alias resize_ record_stream is_ _pin_memory detach alias unfold "
        "_npu npu lift"
    ).split()
)
_CPU = torch.device("cpu")
#: One of these is behind every operator that can run on the CPU.
_CPU_KEYS = ("CPU", "CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


class Emulation:
    """Replaces the operators while the object lives.

    Parameters
    ----------
    runtime : ctypes.CDLL
        The loaded fake; its float status register is set when an operator's result holds NaN or Inf.

    Attributes
    ----------
    calls : Counter
        How often each operator ran (``aten::mul.Tensor``), and ``to_host`` and ``to_device`` for copies, including
        those of single elements (``.item()``).
    waits : Counter
        Copies to the host by the ``native_id`` of the thread that asked for them.
    """

    def __init__(self, runtime: ctypes.CDLL) -> None:
        self.calls: Counter[str] = Counter()
        self.waits: Counter[int] = Counter()
        self._runtime = runtime
        self._library = torch.library.Library("aten", "IMPL")
        for name, operator in _npu_operators():
            self._library.impl(
                name.removeprefix("aten::"), self._kernel(name, operator), "PrivateUse1", allow_override=True
            )
        self._library.impl("copy_", self._copy, "PrivateUse1", allow_override=True)

    def _kernel(self, name: str, operator: Any) -> Callable[..., Any]:
        compute = _matmul_backward if name == "aten::matmul_backward" else operator
        written = {item.name: item.alias_info is not None for item in operator._schema.arguments}

        def run(*args: Any, **kwargs: Any) -> Any:
            self._count(name, args, kwargs)
            # Real kernels are C++: no mode of the user or of msprobe sees what they call.
            with torch._C.DisableTorchFunction():
                cpu_args, cpu_kwargs = _to_cpu((args, kwargs))
                results = compute(*cpu_args, **cpu_kwargs)
                changed = [pair[:2] for pair in zip(args, cpu_args, written.values(), strict=False) if pair[2]]
                changed += [(kwargs[key], cpu_kwargs[key]) for key in kwargs if written[key]]
                back = self._write_back(changed)
                upload = partial(self._upload, device=_device_of(args, kwargs), known=back)
                return tree_map_only(torch.Tensor, upload, results)

        return run

    def _count(self, name: str, args: Any, kwargs: dict[str, Any]) -> None:
        self.calls[name] += 1
        if name == "aten::_local_scalar_dense" or _device_of(args, kwargs).type == "cpu":
            self._count_wait()
        elif name == "aten::_to_copy" and args[0].device.type == "cpu":
            self.calls["to_device"] += 1

    def _count_wait(self) -> None:
        self.calls["to_host"] += 1
        self.waits[threading.get_native_id()] += 1

    def _write_back(self, changed: Sequence[tuple[Any, Any]]) -> dict[int, Any]:
        """Follow resizes of out= arguments; returns the NPU tensor of each changed CPU alias by identity."""
        found: dict[int, Any] = {}
        for targets, aliases in changed:
            for target, alias in zip(tree_leaves(targets), tree_leaves(aliases), strict=True):
                if not isinstance(target, torch.Tensor):
                    continue
                if target.shape != alias.shape:
                    target.resize_(alias.shape)
                    alias_of(target).copy_(alias)
                self._poll(alias)
                found[id(alias)] = target
        return found

    def _upload(self, value: torch.Tensor, device: torch.device, known: dict[int, torch.Tensor]) -> torch.Tensor:
        """Return the tensor for a result: the argument it is, or a new one on ``device``."""
        if id(value) in known:
            return known[id(value)]
        self._poll(value)
        if device.type == "cpu":
            return value.clone()
        result = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
        alias_of(result).copy_(value)
        return result

    def _poll(self, value: torch.Tensor) -> None:
        """Set the status register as arithmetic would; an argument that held NaN already counts as well."""
        if (value.is_floating_point() or value.is_complex()) and value.numel() and value.device.type == "cpu":
            wide = value if value.dtype in (torch.float32, torch.float64, torch.complex64) else value.float()
            if not bool(torch.isfinite(wide).all()):
                self._runtime.fake_cann_raise_overflow(1)

    def _copy(self, target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if target.device.type == "cpu" != source.device.type:
            self._count_wait()
        elif source.device.type == "cpu":
            self.calls["to_device"] += 1
        with torch._C.DisableTorchFunction():
            alias_of(target).copy_(alias_of(source))
        return target


def alias_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor on the memory of an NPU tensor (which is host memory here); others as they are."""
    if tensor.device.type != "npu":
        return tensor
    storage = tensor.untyped_storage()
    if not storage.nbytes():
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    memory = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    flat = torch.frombuffer(memory, dtype=torch.uint8)
    alias = torch.empty(0, dtype=tensor.dtype)
    return alias.set_(flat.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def _npu_operators() -> list[tuple[str, Any]]:
    """Operators with an NPU kernel that compute something, by full name."""
    found = []
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        if not name.startswith("aten::") or name.startswith(_NATIVE) or name == "aten::copy_":
            continue
        has_kernel = partial(torch._C._dispatch_has_kernel_for_dispatch_key, name)
        if not has_kernel("PrivateUse1") or not (any(map(has_kernel, _CPU_KEYS)) or name == "aten::matmul_backward"):
            continue
        base, _, overload = name.removeprefix("aten::").partition(".")
        packet = getattr(torch.ops.aten, base, None)
        if packet is None or (overload or "default") not in packet.overloads():
            continue  # declared without a schema, or for TorchScript only
        operator = getattr(packet, overload or "default")
        if not any(item.alias_info is not None and not item.alias_info.is_write for item in operator._schema.returns):
            found.append((name, operator))
    return found


def _matmul_backward(
    grad: torch.Tensor, left: torch.Tensor, right: torch.Tensor, mask: Sequence[bool]
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Gradients of ``left @ right``: torch_npu differentiates matmul itself, the CPU has no such operator."""
    rows = left.unsqueeze(0) if left.dim() == 1 else left
    columns = right.unsqueeze(1) if right.dim() == 1 else right
    if right.dim() == 1:
        grad = grad.unsqueeze(-1)
    if left.dim() == 1:
        grad = grad.unsqueeze(-2)
    to_left = (grad @ columns.mT).sum_to_size(rows.shape).reshape(left.shape) if mask[0] else None
    to_right = (rows.mT @ grad).sum_to_size(columns.shape).reshape(right.shape) if mask[1] else None
    return to_left, to_right


def _device_of(args: Any, kwargs: dict[str, Any]) -> torch.device:
    """Where results go: the ``device`` argument, else the device of the first NPU tensor."""
    if kwargs.get("device") is not None:
        return torch.device(kwargs["device"])
    tensors = (leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
    return next((tensor.device for tensor in tensors if tensor.device.type == "npu"), torch.device("npu:0"))


def _to_cpu(value: Any) -> Any:
    """Replace tensors by aliases and devices by the CPU in the arguments of an operator."""
    if isinstance(value, torch.Tensor):
        return alias_of(value)
    if isinstance(value, torch.device):
        return _CPU
    if isinstance(value, torch.Generator):
        return None
    if isinstance(value, dict):
        return {key: _to_cpu(item) for key, item in value.items() if key != "pin_memory"}
    if type(value) in (list, tuple):
        return type(value)(_to_cpu(item) for item in value)
    return value
