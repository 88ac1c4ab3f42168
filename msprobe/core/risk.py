"""How likely an API is to lose precision: the classes behind ``risk_level``.

CORE  arithmetic that accumulates or normalises, and everything that another rank or a fused kernel computes.
LOW   moves, reshapes, casts or creates values without computing new ones; dropped at the default level FOCUS.
FOCUS the rest.
"""

from __future__ import annotations

from enum import IntEnum


class Risk(IntEnum):
    """Risk class of an API; a higher value is a higher risk."""

    LOW = 0
    FOCUS = 1
    CORE = 2


LOWEST_RECORDED = {"ALL": Risk.LOW, "FOCUS": Risk.FOCUS, "CORE": Risk.CORE}

# Any API of these prefixes is CORE: communication, fused device kernels and what a user registered on purpose.
CORE_PREFIXES = frozenset({"Distributed", "NPU", "MindSpeed", "Triton", "MintDistributed"})

CORE_APIS = frozenset(
    """
    __matmul__ __rmatmul__ __imatmul__ addbmm addbmm_ addmm addmm_ addmv addmv_ addr addr_ baddbmm baddbmm_ bilinear bmm
    chain_matmul dot einsum inner linear matmul mm mv outer tensordot vdot linalg.matmul linalg.multi_dot linalg.vecdot
    _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution
    _batch_norm_impl_index batch_norm batch_norm_backward_elemt batch_norm_backward_reduce batch_norm_elemt
    batch_norm_gather_stats batch_norm_gather_stats_with_counts batch_norm_stats batch_norm_update_stats group_norm
    instance_norm layer_norm local_response_norm native_batch_norm native_group_norm native_layer_norm rms_norm
    normalize embedding embedding_bag multi_head_attention_forward scaled_dot_product_attention lstm gru lstm_cell
    gru_cell softmax log_softmax softmin gumbel_softmax logsumexp binary_cross_entropy
    binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy ctc_loss gaussian_nll_loss
    hinge_embedding_loss huber_loss kl_div l1_loss margin_ranking_loss mse_loss multi_margin_loss
    multilabel_margin_loss multilabel_soft_margin_loss nll_loss poisson_nll_loss smooth_l1_loss soft_margin_loss
    triplet_margin_loss triplet_margin_with_distance_loss _fused_adam_ _fused_adamw_ _fused_sgd_ _fused_adagrad_
    gather scatter
    """.split()
)

LOW_APIS = frozenset(
    """
    __bool__ __contains__ __float__ __getitem__ __index__ __int__ __iter__ __len__ adjoint alias align_as align_to
    arange as_strided as_tensor atleast_1d atleast_2d atleast_3d bfloat16 bool byte cat cdouble cfloat chalf char
    chunk clamp clone column_stack concat concatenate contiguous cpu cuda data detach detach_ diag diag_embed diagflat
    double dsplit dstack empty empty_like empty_permuted empty_strided expand expand_as eye flatten float from_numpy
    full full_like half hsplit hstack identity int item linspace logspace long mH mT meshgrid moveaxis movedim
    new_empty new_empty_strided new_full new_ones new_tensor new_zeros npu numpy ones ones_like permute rand rand_like
    randint randint_like randn randn_like randperm ravel repeat repeat_interleave requires_grad_ reshape reshape_as
    resolve_conj row_stack split split_with_sizes squeeze stack stride swapaxes swapdims tensor tensor_split tile to
    tolist transpose tril tril_indices triu triu_indices type type_as unbind unflatten unfold unsafe_chunk
    unsafe_split unsafe_split_with_sizes unsafe_view unsqueeze view view_as view_as_complex view_as_real vsplit vstack
    zero_ zeros zeros_like
    """.split()
)


def risk_of(prefix: str, name: str) -> Risk:
    """Risk class of the API ``prefix.name``.

    Parameters
    ----------
    prefix : str
        ``Functional``, ``Tensor``, ``Distributed``, ...
    name : str
        API name within the prefix, with its namespace: ``"linalg.norm"``.

    Returns
    -------
    Risk
    """
    if prefix in CORE_PREFIXES:
        return Risk.CORE
    last = name.rpartition(".")[2]
    if name in CORE_APIS or last in CORE_APIS:
        return Risk.CORE
    return Risk.LOW if last in LOW_APIS else Risk.FOCUS
