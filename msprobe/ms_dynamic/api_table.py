"""Which functions of MindSpore are recorded, and under which names."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType
from typing import Any, NamedTuple

from mindspore import Tensor, mint, ops
from mindspore.communication import comm_func
from mindspore.mint import distributed
from mindspore.mint.nn import functional

from msprobe.ms_dynamic import api_names

# Functions that compute no tensor from tensors: transformations of functions, registration, process groups, compilers.
_NO_COMPUTATION = frozenset(
    """
    J barrier batch_isend_irecv constexpr custom_info_register destroy_process_group distribute derivative depend
    get_backend get_global_rank get_grad get_group_rank get_process_group_ranks get_rank get_vm_impl_fn get_world_size
    grad init_process_group is_available is_initialized jacfwd jacrev jit_forbidden_register jit_view_unsupported jvp
    kernel linearize make_map_parameter mixed_precision_cast move_to ms_kernel new_group op_info_register
    prim_arg_register prim_attr_register print_ recompute recompute_generator reshard set_comm_ops_inplace
    squeeze_impl stop_gradient stop_gradient_ tensordump value_and_grad vjp vmap
    """.split()
)

# Methods and operators of Tensor that compute values; the other public methods that api_names does not list tell about
# a tensor, convert it into something else or belong to the framework.
TENSOR_COMPUTATIONS = frozenset(
    """
    __floordiv__ __getitem__ __ifloordiv__ __invert__ __itruediv__ __pos__ __rfloordiv__ __rtruediv__ __setitem__
    addmm_ adjoint allclose aminmax approximate_equal arctan2 argmax_with_value argmin_with_value argwhere bernoulli_
    bitwise_left_shift bitwise_not bitwise_right_shift cauchy cholesky_inverse choose chunk clamp_ clone col2im copy_
    count_nonzero cov det diagonal_scatter dot dsplit eigvals eq erfinv_ exp_ expand expand_dims exponential_ fill
    fill_ fill_diagonal fill_diagonal_ fills floor_ floor_divide floor_divide_ fmax fmin fold gather gather_nd gcd
    hsplit index_add_ index_copy_ index_fill_ index_put_ inplace_update inv invert kthvalue lgamma log_
    log_matrix_determinant log_normal logcumsumexp lstsq lu_solve masked_fill_ masked_scatter_ matrix_determinant
    matrix_power mm mul mul_ nanmean nanmedian nanquantile normal_ orgqr outer positive ptp put_ quantile random_
    random_categorical remainder_ repeat reshape_as reverse reverse_sequence roll scatter_ scatter_add scatter_add_
    scatter_div scatter_max scatter_min scatter_mul scatter_sub searchsorted select select_scatter sigmoid_ sign_
    slice_scatter soft_shrink softmax tanh_ top_k triangular_solve triu type_as unfold uniform uniform_ unique
    unique_with_pad unsorted_segment_max unsorted_segment_min unsorted_segment_prod view_as vsplit xdivy zero_
    """.split()
)


class Api(NamedTuple):
    """One recorded function.

    Attributes
    ----------
    base : str
        ``Prefix.name``.
    holder : module or class
        What it is an attribute of.
    attribute : str
    hides : bool
        Whether recorded functions that it calls are not recorded.
    """

    base: str
    holder: Any
    attribute: str
    hides: bool


_Names = frozenset[str]


def mindspore_apis() -> list[Api]:
    """Every function that is recorded in MindSpore's dynamic graphs."""
    spaces: tuple[tuple[str, Any, _Names, _Names], ...] = (
        ("Functional", ops, api_names.OPS, _functions_of(ops)),
        ("Tensor", Tensor, api_names.TENSOR, TENSOR_COMPUTATIONS),
        ("Mint", mint, api_names.MINT, _functions_of(mint)),
        ("MintFunctional", functional, api_names.MINT_FUNCTIONAL, _functions_of(functional)),
        ("Distributed", comm_func, api_names.COMMUNICATION, frozenset()),
        ("MintDistributed", distributed, api_names.MINT_DISTRIBUTED, _functions_of(distributed)),
    )
    return [api for prefix, holder, known, more in spaces for api in _apis(prefix, holder, known, more)]


def _apis(prefix: str, holder: Any, known: _Names, more: _Names) -> Iterator[Api]:
    for name in sorted(known | more):
        path, _, attribute = name.rpartition(".")
        place = holder
        for part in path.split(".") if path else ():
            place = getattr(place, part, None)
        if callable(getattr(place, attribute, None)):
            yield Api(f"{prefix}.{attribute}", place, attribute, name in known)


def _functions_of(module: Any) -> _Names:
    """Public Python functions of a namespace that compute something."""
    return frozenset(
        name
        for name in module.__all__
        if not name.startswith("_")
        and name not in _NO_COMPUTATION
        and isinstance(getattr(module, name, None), FunctionType)
    )
