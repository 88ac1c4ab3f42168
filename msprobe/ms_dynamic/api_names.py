"""Names of MindSpore's APIs that readers of existing dumps know, by namespace.

What such an API calls inside is not recorded. Other public APIs are recorded as well (`api_table`), together with the
ones of these lists that they call, so that a record of these names is never missing.
"""

from __future__ import annotations

OPS = frozenset(
    """
    abs absolute accumulate_n acos acosh adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
    adaptive_max_pool1d adaptive_max_pool2d add addbmm addcdiv addcmul addmm addmv addn addr adjoint affine_grid all
    amax amin aminmax angle any approximate_equal arange arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax
    argmin argsort argwhere asin asinh assign assign_add assign_sub atan atan2 atanh atleast_1d atleast_2d
    atleast_3d auto_generate.quant_matmul avg_pool1d avg_pool2d avg_pool3d baddbmm bartlett_window batch_dot
    batch_norm batch_to_space_nd bernoulli bessel_i0 bessel_i0e bessel_i1 bessel_i1e bessel_j0 bessel_j1 bessel_k0
    bessel_k0e bessel_k1 bessel_k1e bessel_y0 bessel_y1 bias_add binary_cross_entropy
    binary_cross_entropy_with_logits bincount bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift
    bitwise_xor blackman_window block_diag bmm bounding_box_decode bounding_box_encode broadcast_to cast cat cdist
    ceil celu channel_shuffle check_valid choice_with_mask cholesky cholesky_solve chunk clamp clip
    clip_by_global_norm clip_by_norm clip_by_value col2im column_stack combinations concat cond conj conv1d conv2d
    conv3d copysign cos cosh cosine_embedding_loss cosine_similarity count_nonzero cov crop_and_resize cross
    cross_entropy ctc_greedy_decoder ctc_loss cummax cummin cumprod cumsum deepcopy deformable_conv2d deg2rad dense
    derivative diag diag_embed diagflat diagonal diagonal_scatter diff digamma dist div divide dot dropout dropout1d
    dropout2d dropout3d dsplit dstack dyn_shape eig einsum elu embedding eps eq equal erf erfc erfinv exp exp2
    expand expand_dims expm1 eye fast_gelu fill flash_attention_score flatten flip fliplr flipud float_power floor
    floor_div floor_mod fmax fmod fold frac fractional_max_pool3d full full_like gamma gather gather_d
    gather_elements gather_nd gaussian_nll_loss gcd ge gelu geqrf ger glu greater greater_equal grid_sample
    group_norm gt gumbel_softmax hamming_window hann_window hardshrink hardsigmoid hardswish hardtanh heaviside
    hinge_embedding_loss histc hsplit hstack huber_loss hypot i0 igamma igammac imag index_add index_fill
    index_select inner inplace_add inplace_index_add inplace_sub inplace_update interpolate intopk inv inverse
    invert iou is_complex is_nonzero is_tensor isclose isfinite isinf isnan isneginf isposinf isreal jet
    kaiser_window kl_div kron l1_loss laplace layer_norm lcm ldexp le leaky_relu lerp less less_equal linspace log
    log10 log1p log2 log_softmax log_uniform_candidate_sampler logaddexp logaddexp2 logdet logical_and logical_not
    logical_or logical_xor logit logsigmoid logspace logsumexp lp_pool1d lp_pool2d lrn lt lu_solve lu_unpack
    margin_ranking_loss masked_fill masked_select matmul matrix_band_part matrix_diag matrix_diag_part
    matrix_set_diag matrix_solve max max_pool2d max_pool3d max_unpool1d max_unpool2d max_unpool3d maximum mean
    median meshgrid min minimum mish mm moveaxis movedim mse_loss msort mul multi_margin_loss multilabel_margin_loss
    multilabel_soft_margin_loss multinomial multinomial_with_replacement multiply mv mvlgamma nan_to_num nanmean
    nansum narrow ne neg negative nextafter nll_loss nonzero norm normal not_equal numel one_hot ones ones_like
    orgqr ormqr outer pad padding pdist permute pinv pixel_shuffle pixel_unshuffle polar polygamma population_count
    positive pow prelu prod qr rad2deg rand rand_like randint randint_like randn randn_like random_categorical
    random_gamma random_poisson randperm range rank ravel real reciprocal relu relu6 remainder renorm
    repeat_elements repeat_interleave reshape reverse reverse_sequence rms_norm roll rot90 rotary_position_embedding
    round row_stack rrelu rsqrt scalar_cast scalar_to_tensor scatter scatter_add scatter_div scatter_max scatter_min
    scatter_mul scatter_nd scatter_nd_add scatter_nd_div scatter_nd_max scatter_nd_min scatter_nd_mul scatter_nd_sub
    scatter_update searchsorted select select_scatter selu sequence_mask sgn shape shuffle sigmoid sign signbit silu
    sin sinc sinh size slice slice_scatter slogdet smooth_l1_loss softmax softmin softshrink softsign sort
    space_to_batch_nd sparse_segment_mean split sqrt square squeeze stack standard_laplace standard_normal std
    std_mean strided_slice sub subtract sum svd swapaxes swapdims t tan tanh tanhshrink tensor_dot
    tensor_scatter_add tensor_scatter_div tensor_scatter_elements tensor_scatter_max tensor_scatter_min
    tensor_scatter_mul tensor_scatter_sub tensor_split threshold tile topk trace transpose trapz tril tril_indices
    triplet_margin_loss triu triu_indices true_divide trunc truncate_div truncate_mod tuple_to_array unbind unfold
    uniform uniform_candidate_sampler unique unique_consecutive unique_with_pad unsorted_segment_max
    unsorted_segment_min unsorted_segment_prod unsorted_segment_sum unsqueeze unstack upsample vander var var_mean
    view_as_real vsplit vstack where xdivy xlogy zeros zeros_like zeta
    """.split()
)

TENSOR = frozenset(
    """
    __abs__ __add__ __and__ __bool__ __eq__ __ge__ __gt__ __iadd__ __ifloordiv__ __imod__ __imul__ __isub__ __le__
    __lt__ __matmul__ __mod__ __mul__ __ne__ __neg__ __or__ __pow__ __radd__ __rmatmul__ __rmod__ __rmul__ __rpow__
    __rsub__ __sub__ __truediv__ __xor__ abs absolute acos acosh add add_ addbmm addcdiv addcmul addmm addmv addr
    all amax amin angle any arccos arccosh arcsin arcsinh arctan arctanh argmax argmin argsort asin asinh atan atan2
    atanh baddbmm bernoulli bfloat16 bincount bitwise_and bitwise_or bitwise_xor bmm bool broadcast_to byte ceil
    cholesky cholesky_solve clamp clip conj copy copysign cos cosh cross cummax cummin cumprod cumsum deg2rad diag
    diagflat diagonal diff digamma div div_ divide double equal erf erfc erfinv exp expand_as expm1 flatten flip
    fliplr flipud float float_power floor fmod frac from_numpy gather_elements ge geqrf ger greater greater_equal gt
    half hardshrink heaviside histc hypot i0 igamma igammac imag index_add index_fill index_put index_select inner
    int inverse is_complex is_signed isclose isfinite isinf isnan isneginf isposinf isreal lcm ldexp le lerp less
    less_equal log log10 log1p log2 logaddexp logaddexp2 logdet logical_and logical_not logical_or logical_xor logit
    logsumexp long lt masked_fill masked_scatter masked_select matmul max maximum mean median min minimum moveaxis
    movedim msort multinomial multiply mvlgamma nan_to_num nansum narrow ne neg negative nelement new_ones new_zeros
    nextafter nonzero norm not_equal ormqr permute pow prod qr rad2deg ravel real reciprocal remainder renorm
    repeat_interleave reshape resize rot90 round rsqrt scatter sgn short sigmoid sign signbit sin sinc sinh slogdet
    sort split sqrt square squeeze std sub sub_ subtract sum sum_to_size svd swapaxes swapdims t take tan tanh
    tensor_split tile to topk trace transpose tril true_divide trunc unbind unique_consecutive unsqueeze var view
    where xlogy
    """.split()
)

MINT = frozenset(
    """
    abs acos acosh add all any arange arccos arccosh arcsin arcsinh arctan arctan2 arctanh argmax argmin asin asinh
    atan atan2 atanh baddbmm bernoulli bitwise_and bitwise_or bitwise_xor bmm broadcast_to cat ceil chunk clamp
    concat conv2d cos cosh cross cummax cummin cumsum div divide eq erf erfc erfinv exp expm1 eye fix flatten flip
    floor full gather greater greater_equal gt histc index_select inverse isclose isfinite item le less less_equal
    linspace log log1p logaddexp logical_and logical_not logical_or logical_xor lt masked_select matmul max maximum
    mean median min minimum mul multinomial nan_to_num narrow ne neg negative nonzero norm normal ones ones_like
    outer permute pow prod rand rand_like reciprocal remainder repeat_interleave reshape roll round rsqrt scatter
    scatter_add searchsorted select sigmoid sign sin sinc sinh softmax sort split sqrt square stack sub sum swapaxes
    tan tanh tile topk trace transpose tril triu trunc unique unsqueeze where xlogy zeros zeros_like
    """.split()
)

MINT_FUNCTIONAL = frozenset(
    """
    adaptive_avg_pool1d adaptive_avg_pool2d avg_pool2d batch_norm binary_cross_entropy
    binary_cross_entropy_with_logits conv_transpose2d dropout elu embedding fold gelu grid_sample group_norm
    hardshrink hardsigmoid hardswish interpolate l1_loss layer_norm leaky_relu linear log_softmax logsigmoid
    max_pool2d mish mse_loss one_hot pad prelu relu relu_ selu sigmoid silu softmax softplus softshrink tanh unfold
    """.split()
)

COMMUNICATION = frozenset(
    """
    all_gather_into_tensor all_reduce all_to_all_single_with_output_shape all_to_all_with_output_shape
    batch_isend_irecv broadcast gather_into_tensor irecv isend recv reduce reduce_scatter_tensor scatter_tensor send
    """.split()
)

MINT_DISTRIBUTED = frozenset(
    """
    all_gather all_gather_into_tensor all_reduce all_to_all all_to_all_single batch_isend_irecv broadcast gather
    irecv isend recv reduce reduce_scatter reduce_scatter_tensor scatter send
    """.split()
)
