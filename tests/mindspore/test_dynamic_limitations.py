"""The entries of docs/limitations.md about dynamic graphs."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import dynamic_parts as parts
import pytest

if TYPE_CHECKING:
    from forked_mindspore import ForkedMindSpore


@pytest.fixture(scope="module")
def found(fresh_mindspore: ForkedMindSpore, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return fresh_mindspore.value(parts.limits, str(tmp_path_factory.mktemp("limits")))


def test_a_name_that_was_bound_before_start_is_not_recorded(found: dict[str, Any]) -> None:
    assert not any(name.startswith("Mint.add.") for name in found["dump"]["data"])


def test_the_gradient_of_a_leaf_that_is_returned_is_that_of_all_its_uses(found: dict[str, Any]) -> None:
    data = found["dump"]["data"]
    assert data["Tensor.to.0.backward"]["input"][0]["Max"] == 2.0
    assert data["Tensor.__mul__.0.backward"]["output"][1]["Max"] == 1.0


def test_a_cell_that_gradients_are_asked_of_has_no_backward_record(found: dict[str, Any]) -> None:
    data = found["dump"]["data"]
    assert {"Cell.0.ReLU.forward.0", "Primitive.relu.ReLU.0.backward"} <= data.keys()
    assert "Cell.0.ReLU.backward.0" not in data


def test_a_traced_function_is_recorded_while_it_is_traced(found: dict[str, Any]) -> None:
    data = found["dump"]["data"]
    assert "Mint.sub.0.forward" in data
    assert not any(name.startswith("Jit.") for name in data)


def test_the_checksum_of_bfloat16_is_that_of_its_own_bytes(found: dict[str, Any]) -> None:
    entry = found["dump"]["data"]["Tensor.to.1.forward"]["output"][0]
    assert entry["dtype"] == "BFloat16"
    assert entry["md5"] == f"{zlib.crc32(bytes.fromhex(found['bfloat16'])):08x}"
