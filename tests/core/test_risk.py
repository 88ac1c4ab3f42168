"""Risk classes: what each level keeps."""

import pytest

from msprobe.core.risk import CORE_APIS, LOW_APIS, Risk, risk_of


@pytest.mark.parametrize(
    ("prefix", "name", "risk"),
    [
        ("Functional", "linear", Risk.CORE),  # a rival drops it here because of a missing comma
        ("Torch", "chain_matmul", Risk.CORE),
        ("Torch", "linalg.multi_dot", Risk.CORE),
        ("Distributed", "all_reduce", Risk.CORE),
        ("NPU", "npu_rotary_mul", Risk.CORE),
        ("Tensor", "view", Risk.LOW),
        ("Tensor", "__getitem__", Risk.LOW),
        ("Torch", "cat", Risk.LOW),
        ("Tensor", "masked_fill", Risk.FOCUS),
        ("Tensor", "t", Risk.FOCUS),
        ("Torch", "fft.rfft", Risk.FOCUS),
    ],
)
def test_risk_class(prefix, name, risk):
    assert risk_of(prefix, name) is risk


def test_no_api_is_in_two_classes():
    assert not CORE_APIS & LOW_APIS
