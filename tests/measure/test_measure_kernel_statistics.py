"""The statistics that MindSpore's dump knows, computed by us where it computes none."""

import hashlib

import numpy as np
import pytest

from msprobe.measure.kernel_statistics import measure_categories, tensor_entry

EVERY = [
    "max",
    "min",
    "avg",
    "l2norm",
    "count",
    "negative zero count",
    "positive zero count",
    "zero count",
    "nan count",
    "negative inf count",
    "positive inf count",
    "md5",
    "hash:md5",
    "hash",
]


def test_every_category_of_a_float_array():
    array = np.array([[-2.0, 0.0, -0.0, 3.0], [-np.inf, np.inf, np.inf, 1.0]], np.float32)
    found = measure_categories(array, EVERY, low=True)
    content = array.tobytes()
    assert list(found) == EVERY
    assert [found[name] for name in EVERY[4:]] == [
        8,
        2,
        4,
        2,
        0,
        1,
        2,
        hashlib.md5(content).hexdigest(),
        hashlib.md5(content).hexdigest(),
        hashlib.sha1(content).hexdigest(),
    ]
    assert (found["max"], found["min"]) == (np.inf, -np.inf)


def test_counts_of_a_large_strided_array_are_those_of_numpy():
    array = np.random.default_rng(0).integers(-5, 5, (1500, 3000), np.int32).T
    found = measure_categories(
        array, ["negative zero count", "positive zero count", "negative inf count", "md5"], low=True
    )
    assert found["negative zero count"] == (array < 0).sum()
    assert found["positive zero count"] == (array > 0).sum()
    assert found["negative inf count"] == 0
    assert found["md5"] == hashlib.md5(np.ascontiguousarray(array)).hexdigest()


def test_what_does_not_exist_is_none():
    found = measure_categories(np.zeros((0, 3), np.float32), ["max", "count"], low=True)
    assert found == {"max": None, "count": 0}
    assert measure_categories(np.zeros(2, np.complex64), ["negative zero count"], low=True) == {
        "negative zero count": None
    }


@pytest.mark.parametrize(("low", "mean"), [(True, 0.333984375), (False, 1.001 / 3)])
def test_bfloat16_in_a_float32_file_is_rounded_as_bfloat16(low, mean):
    entry = tensor_entry(np.array([0.0, 0.0, 1.001], np.float32), "BFloat16", low=low)
    assert entry["Mean"] == pytest.approx(mean, abs=1e-7)
    assert (entry["type"], entry["dtype"], entry["shape"]) == ("mindspore.Tensor", "BFloat16", [3])


def test_bfloat16_in_a_float32_file_is_rounded_once():
    """The mean is 1 + 2**-8 + 2**-32: by way of float32 it would fall on a tie of bfloat16 and go to even, down."""
    array = np.array([1.0, 1.0, 2 + 2**-6, 2**-30], np.float32)
    assert tensor_entry(array, "BFloat16", low=True)["Mean"] == 1 + 2**-7
