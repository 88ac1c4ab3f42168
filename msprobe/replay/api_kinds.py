"""How an API is replayed and judged, by its name: the one table of API classes.

EXACT     moves, selects or creates values: the result is the float64 reference's, to the bit.
FLOAT     computes: the error is measured (see :mod:`msprobe.replay.verdicts`).
A name that is skipped has the reason; a random API that can run without its randomness is replayed without it.
"""

from __future__ import annotations

from enum import Enum

from msprobe.core.risk import LOW_APIS


class Kind(Enum):
    """What is demanded of a result with a floating-point dtype. Integers and booleans are always exact."""

    EXACT = "exact"
    FLOAT = "float"


_RANDOM = frozenset(
    """
    bernoulli bernoulli_ binomial cauchy_ exponential_ fractional_max_pool2d fractional_max_pool3d geometric_
    gumbel_softmax log_normal_ multinomial normal normal_ poisson rand rand_like randint randint_like randn randn_like
    random_ randperm rrelu rrelu_ uniform_ native_dropout native_alpha_dropout _fused_dropout kaiming_normal_
    kaiming_uniform_ orthogonal_ sparse_ trunc_normal_ xavier_normal_ xavier_uniform_
    """.split()
)
_UNINITIALISED = frozenset(
    "empty empty_like empty_permuted empty_strided new_empty new_empty_strided resize_ resize_as_ set_".split()
)
_MOVES_AWAY = frozenset({"cuda", "npu", "xpu", "to_mkldnn", "pin_memory"})
_NOT_REPLAYED_PREFIXES = {
    "Distributed": "communication: needs the other ranks",
    "MintDistributed": "communication: needs the other ranks",
    "Triton": "a Triton kernel: its grid is not in the dump",
    "Jit": "a compiled function",
}

# These compute nothing new, in addition to what moves values (core.risk.LOW_APIS).
_SELECTING = frozenset(
    """
    __abs__ __and__ __eq__ __ge__ __gt__ __invert__ __le__ __lt__ __ne__ __neg__ __or__ __pos__ __setitem__ __xor__ abs
    abs_ absolute amax amin argmax argmin argsort bool_ ceil clamp_ clamp_max clamp_min clip constant_ copy_ copysign
    diagonal dropout1d eq expand_copy eye_ fill fill_ flip fliplr flipud floor fmax fmin frac gather ge gt heaviside
    index_copy index_copy_ index_fill index_fill_ index_put index_put_ index_select isfinite isinf isnan kthvalue le
    logical_and logical_not logical_or logical_xor lt masked_fill masked_fill_ masked_scatter masked_select max
    max_pool1d max_pool2d max_pool3d maximum median min minimum mode narrow ne neg neg_ negative nonzero ones_ pad
    pixel_shuffle pixel_unshuffle positive real imag relu relu6 relu_ relu6_ roll rot90 round scatter scatter_ select
    select_scatter sgn sign signbit slice_scatter sort swapaxes take take_along_dim threshold topk trunc unfold unique
    unique_consecutive view_as where zeros_ zero_ _to_copy _unsafe_view slice t
    """.split()
)
# Creation and conversion that compute in floating point after all.
_COMPUTED = frozenset({"linspace", "logspace", "arange", "range", "normalize"})
_INDEX_OF = frozenset("topk sort argsort argmax argmin max min median mode kthvalue cummax cummin".split())
# A float argument stands at the border of what is decided: it is rounded as the tensor beside it.
_DECIDING = frozenset(
    """
    __eq__ __ge__ __gt__ __le__ __lt__ __ne__ eq ge gt le lt ne __floordiv__ __mod__ floor_divide remainder fmod
    __ifloordiv__ __imod__ floor_divide_ remainder_ heaviside threshold isclose
    """.split()
)

# These keep sums and products in the dtype of the result, in their forward or when they compute gradients.
_NARROW_FORWARD = frozenset("prod cumprod cdist _cdist_forward multi_head_attention_forward logcumsumexp".split())
_NARROW_BACKWARD = _NARROW_FORWARD | frozenset(
    """
    scaled_dot_product_attention embedding embedding_bag __getitem__ gather index_select index_add index_copy index_put
    index_put_ __setitem__ take take_along_dim scatter scatter_add scatter_reduce repeat_interleave grid_sample
    """.split()
)

# Random API -> its probability: position and keyword. It is replayed with probability 0.
PROBABILITIES: dict[str, tuple[int, str]] = {
    **dict.fromkeys(
        """dropout dropout_ dropout1d dropout2d dropout3d alpha_dropout alpha_dropout_ feature_dropout feature_dropout_
        feature_alpha_dropout feature_alpha_dropout_""".split(),
        (1, "p"),
    ),
    "scaled_dot_product_attention": (4, "dropout_p"),
    "_scaled_dot_product_flash_attention_for_cpu": (3, "dropout_p"),
    "multi_head_attention_forward": (9, "dropout_p"),
}
RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})


def last_name(path: str) -> str:
    """Return the name that decides: ``norm`` of ``linalg.norm``, ``mm`` of the kernel ``mm.default``."""
    return path.rpartition(".")[2]


def decisive_name(prefix: str, path: str) -> str:
    """Return the name that the tables of this module know: of a kernel, that without its overload."""
    return path.partition(".")[0] if prefix == "Aten" else last_name(path)


def skip_reason(prefix: str, path: str) -> str:
    """Return why an API is not replayed, as far as its name tells; empty if it is.

    Parameters
    ----------
    prefix : str
        ``Functional``, ``Tensor``, ...
    path : str
        Name within the prefix: ``linalg.norm``.
    """
    name = decisive_name(prefix, path)
    if prefix in _NOT_REPLAYED_PREFIXES:
        return _NOT_REPLAYED_PREFIXES[prefix]
    if "c10d" in path.split(".")[:2] or "_c10d_functional" in path.split(".")[:2]:
        return _NOT_REPLAYED_PREFIXES["Distributed"]
    if name in _RANDOM:
        return "random: two runs differ"
    if name in _UNINITIALISED:
        return "result is uninitialised memory"
    if name in _MOVES_AWAY:
        return "moves data to another device"
    return ""


def kind_of(prefix: str, path: str) -> Kind:
    """Return what is demanded of the floating-point results of an API."""
    name = decisive_name(prefix, path)
    exact = (name in LOW_APIS or name in _SELECTING) and name not in _COMPUTED
    return Kind.EXACT if exact else Kind.FLOAT


def selects_by_value(prefix: str, path: str) -> bool:
    """Whether an API returns positions of values: where two values are equal, either position is right."""
    return decisive_name(prefix, path) in _INDEX_OF


def rounds_scalars(prefix: str, path: str) -> bool:
    """Whether a float argument decides about a discontinuous result, so that its last bits matter."""
    return decisive_name(prefix, path) in _DECIDING


def has_narrow_sums(prefix: str, path: str, direction: str) -> bool:
    """Whether an API keeps sums in the dtype of its result instead of a wider one.

    Parameters
    ----------
    prefix, path : str
        ``Functional``, ``embedding``.
    direction : {"forward", "backward"}
    """
    names = _NARROW_FORWARD if direction == "forward" else _NARROW_BACKWARD
    return decisive_name(prefix, path) in names
