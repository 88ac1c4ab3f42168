"""Every layout, subclass and wrapper is measured, or is null with a reason."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from msprobe.measure import statistics
from msprobe.measure.encode import ValueEncoder
from msprobe.measure.views import COALESCE_LIMIT

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def encode(value: object) -> dict:
    return ValueEncoder().encode(value)


def four(entry: dict) -> tuple:
    return entry["Max"], entry["Min"], entry["Mean"], entry["Norm"]


DENSE = torch.tensor([[0.0, 3.0, 0.0, 0.0], [4.0, 0.0, 0.0, -1.0], [0.0] * 4, [0.0] * 4])
STORED = (4.0, -1.0, 2.0, pytest.approx(math.sqrt(26)))


@pytest.mark.parametrize("layout", ["sparse_coo", "sparse_csr", "sparse_csc"])
def test_sparse_tensors_give_the_statistics_of_stored_values(layout: str) -> None:
    entry = encode(DENSE.to_sparse(layout=getattr(torch, layout)))
    assert four(entry) == STORED
    assert entry["shape"] == [4, 4]
    assert entry["layout"] == f"torch.{layout}"
    assert entry["measured"] == "stored values"


@pytest.mark.parametrize("layout", ["sparse_bsr", "sparse_bsc"])
def test_block_sparse_tensors_give_the_statistics_of_stored_blocks(layout: str) -> None:
    entry = encode(DENSE.to_sparse(layout=getattr(torch, layout), blocksize=(2, 2)))
    assert four(entry)[:2] == (4.0, -1.0)
    assert entry["shape"] == [4, 4]


def test_an_uncoalesced_tensor_is_summed_first_unless_it_is_large() -> None:
    small = torch.sparse_coo_tensor(torch.tensor([[0, 0]]), torch.tensor([1.0, 2.0]), (3,))
    assert encode(small)["Max"] == 3.0
    assert not small.is_coalesced()
    count = COALESCE_LIMIT + 1
    large = torch.sparse_coo_tensor(torch.zeros(1, count, dtype=torch.int64), torch.ones(count), (3,))
    entry = encode(large)
    assert entry["Max"] == 1.0
    assert entry["measured"] == "stored values, not coalesced"


def test_a_sparse_tensor_without_values_is_empty() -> None:
    entry = encode(torch.zeros(3, 3).to_sparse())
    assert four(entry) == (None,) * 4
    assert entry["reason"] == "empty tensor"
    assert entry["shape"] == [3, 3]


@pytest.mark.parametrize("dtype", [torch.qint8, torch.quint8, torch.qint32], ids=str)
def test_quantised_tensors_give_the_statistics_of_dequantised_values(dtype: torch.dtype) -> None:
    values = torch.randn(30, 5000)
    for tensor in (
        torch.quantize_per_tensor(values, 0.05, 10, dtype),
        torch.quantize_per_tensor(values, 0.05, 10, dtype)[3:, ::2],
        torch.quantize_per_channel(values, torch.rand(30) + 0.01, torch.arange(30), 0, dtype),
    ):
        reference = tensor.dequantize()
        entry = ValueEncoder(precision="high").encode(tensor)
        assert entry["Max"] == pytest.approx(reference.max().item())
        assert entry["Min"] == pytest.approx(reference.min().item())
        assert entry["Mean"] == pytest.approx(reference.double().mean().item(), abs=1e-6)
        assert entry["Norm"] == pytest.approx(reference.double().norm().item(), rel=1e-6)
        assert entry["dtype"] == str(dtype)


def test_nested_tensors_give_the_statistics_of_their_values() -> None:
    parts = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, -4.0, 0.5])]
    for layout in (torch.strided, torch.jagged):
        entry = encode(torch.nested.nested_tensor(parts, layout=layout))
        assert four(entry)[:2] == (3.0, -4.0)
        assert entry["shape"] == [5]
        assert entry["layout"] == str(layout)
    assert entry["type"] == "torch.nested._internal.nested_tensor.NestedTensor"


def test_a_strided_nested_tensor_is_not_read_as_if_it_were_dense() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.full((4, 3), 2.0)])
    assert encode(nested)["Mean"] == pytest.approx((6 + 24) / 18)


def test_mkldnn_tensors_are_measured() -> None:
    entry = encode(torch.tensor([[3.0, 4.0]]).to_mkldnn())
    assert four(entry) == (4.0, 3.0, 3.5, 5.0)
    assert entry["layout"] == "torch._mkldnn"


def test_conjugate_and_negative_bits_are_resolved() -> None:
    tensor = torch.tensor([1 + 2j, 3 - 4j]).conj()
    assert four(encode(tensor))[0] == 5.0
    assert four(encode(tensor.imag)) == (4.0, -2.0, 1.0, pytest.approx(math.sqrt(20)))
    assert tensor.is_conj()


def test_a_zero_tangent_without_memory_is_zero() -> None:
    assert four(encode(torch._efficientzerotensor((3,)))) == (0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (torch.empty(0, 3), "empty tensor"),
        (torch.ones(2, device="meta"), "meta tensor: no data"),
        (torch._to_functional_tensor(torch.ones(2)), "functional tensor: no data while tracing"),
    ],
    ids=["empty", "meta", "functional"],
)
def test_tensors_without_data_are_null_with_a_reason(tensor: torch.Tensor, reason: str) -> None:
    encoder = ValueEncoder()
    entry = encoder.encode(tensor)
    assert four(entry) == (None,) * 4
    assert entry["reason"] == reason
    assert encoder.null_reasons[reason] == 1
    assert statistics(tensor).reason == reason


def test_a_fake_tensor_is_null_under_its_own_type_also_while_its_mode_is_active() -> None:
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.ones(2, 3))
        inside = encode(fake)
    assert inside == encode(fake)
    assert inside["type"] == "torch._subclasses.fake_tensor.FakeTensor"
    assert inside["reason"] == "fake tensor: no data"
    assert inside["shape"] == [2, 3]


def test_freed_storage_is_not_read_even_through_a_view() -> None:
    tensor = torch.ones(100)
    view = tensor[10:]
    tensor.untyped_storage().resize_(0)
    for value in (tensor, view):
        assert "no storage" in encode(value)["reason"]


def test_functorch_wrappers_are_unwrapped_to_any_depth() -> None:
    seen = []

    def inner(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen.append(encode(x))
        seen.append(encode(y))
        return (x * y).sum()

    x, y = torch.arange(6.0).view(2, 3), torch.tensor([1.0, 1.0, 5.0])
    torch.vmap(torch.func.grad(inner), in_dims=(0, None))(x, y)
    assert [entry["type"] for entry in seen] == ["GradTrackingTensor"] * 2
    assert [four(entry)[0] for entry in seen] == [5.0, 5.0]
    assert seen[0]["shape"] == [2, 3]
    torch.vmap(torch.vmap(lambda t: (seen.append(encode(t)), t)[1]))(x)
    assert seen[-1]["type"] == "BatchedTensor"
    assert seen[-1]["Max"] == 5.0


class Marked(torch.Tensor):
    """A user's subclass that would record every function called on it."""

    calls = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls += 1
        return super().__torch_function__(func, types, args, kwargs)


def test_a_users_subclass_is_measured_without_calling_its_hooks() -> None:
    tensor = torch.tensor([3.0, -4.0]).as_subclass(Marked)
    Marked.calls = 0
    entry = encode(tensor)
    assert four(entry) == (3.0, -4.0, -0.5, 5.0)
    assert entry["type"] == "torch.Tensor"
    assert Marked.calls == 0


class Wrapping(torch.Tensor):
    """A wrapper subclass as quantisation libraries write them: no memory, inner tensors."""

    @staticmethod
    def __new__(cls, *inner: torch.Tensor):
        return torch.Tensor._make_wrapper_subclass(cls, inner[0].shape, dtype=inner[0].dtype)

    def __init__(self, *inner: torch.Tensor) -> None:
        self.inner_a, self.inner_b = inner[0], inner[-1]
        self.names = ["inner_a", "inner_b"][: len(inner)]

    def __tensor_flatten__(self):
        return self.names, None

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} was called on a wrapper")


def test_a_wrapper_of_one_tensor_is_measured_and_of_several_is_named() -> None:
    entry = encode(Wrapping(torch.tensor([3.0, 4.0])))
    assert four(entry)[3] == 5.0
    assert entry["measured"] == "inner_a"
    assert encode(Wrapping(torch.ones(2), torch.ones(3)))["reason"] == "Wrapping holds other tensors: inner_a, inner_b"


def test_an_uninitialised_parameter_does_not_raise() -> None:
    entry = encode(torch.nn.parameter.UninitializedParameter())
    assert "UninitializedParameter" in entry["type"]
    assert entry["reason"]


@pytest.fixture
def process_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_dtensor_gives_its_local_shard_with_mesh_and_placements(process_group) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (1,))
    tensor = distribute_tensor(torch.tensor([[3.0, 4.0]]), mesh, [Shard(0)])
    entry = encode(tensor)
    assert four(entry) == (4.0, 3.0, 3.5, 5.0)
    assert entry["type"] == "torch.distributed.tensor.DTensor"
    assert entry["device_mesh"] == [0]
    assert entry["placements"][0]["Shard"]["dim"] == 0
    local = tensor.to_local()
    entry = encode(type(tensor).from_local(local, mesh, [Partial()], run_check=False))
    assert entry["placements"] == [{"Partial": {"reduce_op": "sum"}}]
    assert encode(distribute_tensor(local, mesh, [Replicate()]))["placements"] == [{"Replicate": {}}]


def test_collective_arguments_are_encoded(process_group) -> None:
    ranks = dist.get_process_group_ranks(process_group)
    entry = encode(process_group)
    assert entry == {"type": "torch.ProcessGroup", "group_ranks": ranks, "group_id": entry["group_id"]}
    assert len(entry["group_id"]) == 8
    operation = dist.P2POp(dist.isend, torch.ones(2), group=process_group, group_peer=0, tag=7)
    found = encode(operation)
    assert {name: found[name] for name in ("class_type", "op", "tag", "group_id")} == {
        "class_type": "torch.distributed.P2POp",
        "op": "isend",
        "tag": 7,
        "group_id": entry["group_id"],
    }
    assert found["tensor"]["Max"] == 1.0
    for operation in (dist.ReduceOp.SUM, dist.ReduceOp(dist.ReduceOp.SUM)):
        assert encode(operation) == {"type": "torch.distributed.ReduceOp", "value": "RedOpType.SUM"}


def test_a_running_collective_is_not_read(process_group) -> None:
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    entry = encode(AsyncCollectiveTensor(torch.ones(2)))
    assert entry["reason"] == "result of a collective that is still running"
