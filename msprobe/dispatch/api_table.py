"""From the function object that torch hands to a ``TorchFunctionMode`` to the API it stands for.

Every overridable function has one identity however it was imported, so a name is found once per object and cached.
Nothing in torch is replaced. Three kinds of objects need the call site to decide (see
:mod:`msprobe.dispatch.call_site`): operators (``a + b`` arrives as ``Tensor.add``), functions that two namespaces
share (``F.conv2d is torch.conv2d``) and functions behind ``boolean_dispatch`` (``F.max_pool2d(...,
return_indices=True)``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

from msprobe.core.risk import Risk, risk_of

# Calls that carry no values: shape and storage questions, hook registration, printing, pickling.
_VALUE_FREE = frozenset(
    """
    __array_priority__ __deepcopy__ __delete__ __dir__ __dlpack_device__ __format__ __get__ __hash__ __len__ __reduce__
    __reduce_ex__ __repr__ __set__ __setstate__ _is_view _is_zerotensor _nnz _set_grad_enabled _sparse_mask_projection
    _version can_cast coalesced data_ptr dense_dim device dim dim_order element_size get_default_dtype get_device
    has_names has_torch_function is_coalesced is_complex is_conj is_contiguous is_distributed is_floating_point
    is_inference is_neg is_nonzero is_pinned is_same_size is_set_to is_shared is_signed is_sparse is_storage is_tensor
    manual_seed ndimension nelement numel pin_memory promote_types record_stream register_hook
    register_post_accumulate_grad_hook requires_grad_ result_type retain_grad set_default_dtype share_memory_ size
    sparse_dim storage storage_offset storage_type stride sym_numel typed_storage untyped_storage
    """.split()
)

# Entries into the autograd engine: never records of their own; what runs inside them is seen (dispatch.engine).
_ENGINE = frozenset({"Tensor.backward", "Torch.autograd.backward", "Torch.autograd.grad"})

# Python wrappers without a record of their own: what they compute is recorded instead, as the operators they apply.
_TRANSPARENT = frozenset({"__rdiv__", "__rtruediv__", "__rfloordiv__", "__rlshift__", "__rrshift__"})

# Operator namespaces that serve the framework itself.
_BOOKKEEPING = frozenset({"profiler", "prim", "prims", "rngprims", "inductor", "msprobe"})

# Operators of torch.distributed._functional_collectives.
_FUNCTIONAL_COLLECTIVES = frozenset({"_c10d_functional", "_c10d_functional_autograd", "c10d_functional"})

_VF_NAMES = ("lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")

# Second names of torch.mm and others: builtins of one C function compare equal, so they would be taken for each other.
_SECOND_NAMES = frozenset({"dsmm", "hsmm", "saddmm", "spmm", "_segment_reduce", "_sym_sqrt"})

# Operator symbol -> (name under which torch dispatches it, dunder it is recorded as).
OPERATORS = {
    "+": ("add", "__add__"),
    "-": ("sub", "__sub__"),
    "*": ("mul", "__mul__"),
    "/": ("div", "__truediv__"),
    "%": ("remainder", "__mod__"),
    "@": ("matmul", "__matmul__"),
    "+=": ("add_", "__iadd__"),
    "-=": ("sub_", "__isub__"),
    "*=": ("mul_", "__imul__"),
    "/=": ("div_", "__itruediv__"),
    "//=": ("floor_divide_", "__ifloordiv__"),
    "%=": ("remainder_", "__imod__"),
    "==": ("eq", "__eq__"),
    "!=": ("ne", "__ne__"),
    "<": ("lt", "__lt__"),
    "<=": ("le", "__le__"),
    ">": ("gt", "__gt__"),
    ">=": ("ge", "__ge__"),
    "unary -": ("neg", "__neg__"),
    "unary +": ("positive", "__pos__"),
    "abs()": ("abs", "__abs__"),
}
# `F.tanh(x)` is `x.tanh()` to torch: these functions of torch.nn.functional are no overridable functions themselves.
SHORT_FUNCTIONS = ("sigmoid", "tanh")
_OPERATOR_FUNCTIONS = frozenset(name for name, _ in OPERATORS.values())
# `1 + a` reaches torch as Tensor.add(a, 1): only these have a reflected form that torch does not name itself.
REFLECTED = {"__add__": "__radd__", "__mul__": "__rmul__"}


class Api:
    """What is known about one overridable function. Plain slots: read on every call.

    Attributes
    ----------
    base : str
        ``Prefix.name``, the part of a record name before the index.
    risk : Risk
    ignored, engine, transparent, communicates : bool
        Not a record; an entry into the autograd engine; recorded through what it calls; an operator whose result comes
        from other ranks, and later.
    at_site : bool
        Whether the call site decides about the final name.
    """

    __slots__ = (
        "at_site",
        "base",
        "communicates",
        "engine",
        "ignored",
        "name",
        "operator",
        "other",
        "prefix",
        "risk",
        "transparent",
    )

    def __init__(self, prefix: str, name: str, *, other: Api | None = None, ignored: bool = False) -> None:
        self.prefix = prefix
        self.name = name
        self.base = f"{prefix}.{name}"
        self.risk: Risk = risk_of(prefix, name)
        self.ignored = ignored
        self.engine = False
        self.transparent = False
        self.communicates = False
        self.operator = prefix == "Tensor" and name in _OPERATOR_FUNCTIONS
        self.other = other
        short = prefix == "Tensor" and name in SHORT_FUNCTIONS
        self.at_site = self.operator or short or other is not None or name.endswith("_with_indices")

    def renamed(self, name: str) -> Api:
        """The same prefix with another name: a dunder, or the public face of a dispatched variant."""
        return Api(self.prefix, name)


def _members(namespace: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in dir(namespace):
        value = getattr(namespace, name, None)
        if callable(value) and not isinstance(value, (type, ModuleType)):
            yield name, value


def _namespaces() -> Iterator[tuple[str, str, Any]]:
    """Namespaces in the order in which they claim a function: (record prefix, path inside it, namespace)."""
    yield "Functional", "", torch.nn.functional
    yield "Tensor", "", torch.Tensor
    yield "Torch", "", torch
    for path in ("linalg", "fft", "special", "sparse", "nested", "signal.windows", "nn.init"):
        namespace: Any = torch
        for part in path.split("."):
            namespace = getattr(namespace, part)
        yield "Torch", f"{path}.", namespace


class ApiTable:
    """Names of all overridable functions, found once per function object."""

    def __init__(self) -> None:
        self._known: dict[Any, Api] = {}
        for prefix, path, namespace in _namespaces():
            for name, function in _members(namespace):
                if name in _SECOND_NAMES or (prefix == "Functional" and name.startswith("_")):
                    continue
                self._claim(function, Api(prefix, f"{path}{name}"))
        for name in _VF_NAMES:
            self._known[getattr(torch, name)] = Api("VF", name)

    def _claim(self, function: Callable[..., Any], api: Api) -> None:
        try:
            first = self._known.get(function)
        except TypeError:  # an unhashable callable cannot be looked up later either
            return
        if first is None:
            self._known[function] = self._classified(api)
        elif first.prefix == "Functional" and api.prefix == "Torch" and first.other is None:
            first.other = api
            first.at_site = True
        elif api.prefix == first.prefix == "Tensor" and first.name.startswith("__") and not api.name.startswith("__"):
            self._known[function] = self._classified(api)  # the plain name; the call site tells operators apart

    @staticmethod
    def _classified(api: Api) -> Api:
        last = api.name.rpartition(".")[2]
        api.ignored = api.ignored or last in _VALUE_FREE
        api.engine = api.base in _ENGINE
        api.transparent = api.prefix == "Tensor" and last in _TRANSPARENT
        return api

    def names(self) -> Iterator[str]:
        """Names that records of the known functions begin with: ``Functional.conv2d``, and ``Torch.conv2d`` too."""
        for api in self._known.values():
            yield api.base
            if api.other is not None:
                yield api.other.base

    def find(self, function: Any) -> Api:
        """The API behind ``function``, as torch passes it to ``__torch_function__``."""
        api = self._known.get(function)
        if api is None:
            api = self._known[function] = self._classified(_name_unlisted(function))
        return api


def _name_unlisted(function: Any) -> Api:
    """Name a function that no public namespace lists: custom ops, private builtins, user functions."""
    if isinstance(function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return _name_operator(function)
    name = str(getattr(function, "__name__", None) or type(function).__name__)
    module = getattr(function, "__module__", None) or ""
    if name in _VALUE_FREE:
        return Api("Tensor", name, ignored=True)
    of_tensor = getattr(function, "__objclass__", None) is torch._C.TensorBase or module == "torch._tensor"
    if of_tensor or (not module and hasattr(torch.Tensor, name)):
        return Api("Tensor", name)
    if module and module.split(".")[0] != "torch":
        return Api("custom", name)
    return _name_of_torch(module.partition(".")[2], name)


def _name_of_torch(path: str, name: str) -> Api:
    if path == "distributed.distributed_c10d":
        return Api("Distributed", name)
    if path in ("", "functional") or path.startswith("_C"):
        return Api("Torch", name)
    return Api("Torch", f"{path}.{name}")


def _name_operator(function: torch._ops.OpOverload | torch._ops.OpOverloadPacket) -> Api:
    packet = function if isinstance(function, torch._ops.OpOverloadPacket) else function.overloadpacket
    namespace, _, op = packet._qualified_op_name.partition("::")
    if namespace in _FUNCTIONAL_COLLECTIVES:
        communication = Api("Distributed", f"{namespace}.{op}", ignored=op == "_wrap_tensor_autograd")
        communication.communicates = True
        return communication
    if namespace in _BOOKKEEPING:
        return Api("Torch", f"ops.{namespace}.{op}", ignored=True)
    prefix = {"aten": "Aten", "npu": "NPU"}.get(namespace)
    return Api(prefix, op) if prefix else Api("Torch", f"ops.{namespace}.{op}")
