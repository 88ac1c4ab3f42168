"""Which kernels count as computing: the risk classes behind ``risk_level`` at level L2."""

from __future__ import annotations

import pytest

from msprobe.core.kernel_risk import kernel_risk
from msprobe.core.risk import Risk

CASES = {
    Risk.CORE: "mm addmm convolution convolution_backward native_layer_norm native_layer_norm_backward _softmax"
    " _log_softmax_backward_data nll_loss_forward embedding_dense_backward _scaled_dot_product_flash_attention_for_cpu"
    " cudnn_batch_norm _fused_adamw_ mkldnn_linear",
    Risk.FOCUS: "relu threshold_backward add_ mul sum native_dropout _foreach_addcdiv_ index_put_",
    Risk.LOW: "clone copy_ zero_ fill_ _to_copy _unsafe_view ones_like cat slice_backward _local_scalar_dense",
}


@pytest.mark.parametrize(("risk", "name"), [(risk, name) for risk, names in CASES.items() for name in names.split()])
def test_a_kernel_has_the_class_of_the_api_it_carries_out(risk: Risk, name: str) -> None:
    assert kernel_risk("aten", name) is risk


def test_a_view_is_low_and_a_kernel_of_another_library_is_core() -> None:
    assert kernel_risk("aten", "anything", view=True) is Risk.LOW
    assert kernel_risk("c10d", "allreduce_") is Risk.CORE
    assert kernel_risk("mylib", "copy") is Risk.CORE
