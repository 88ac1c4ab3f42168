"""Measuring leaves no trace: graph, random state, versions, modes, transforms, traces, memory."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import orjson
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from msprobe.measure import statistics
from msprobe.measure.encode import ValueEncoder

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

#: A value for every route through the encoder: kernel, torch operations, views, checksums.
KINDS = {
    "plain": lambda: torch.randn(4, 5),
    "strided": lambda: torch.randn(4, 6)[:, ::2],
    "large": lambda: torch.randn(900, 901).t(),
    "complex": lambda: torch.randn(4, dtype=torch.complex64).conj(),
    "negative": lambda: torch.randn(4, dtype=torch.complex64).conj().imag,
    "float4": lambda: torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "extreme": lambda: torch.full((3,), 1e300, dtype=torch.float64),
}


class CountFunctions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class CountOperations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def read(entry: object) -> dict:
    return json.loads(orjson.dumps(entry))


def encode_all(value: torch.Tensor) -> None:
    for mode in ("statistics", "md5", "hash"):
        with torch._C.DisableTorchFunction():
            ValueEncoder(summary_mode=mode).encode(value)
    encoder = ValueEncoder(immediate=())
    with torch._C.DisableTorchFunction():
        encoder.encode(value)
    encoder.resolve()


@pytest.mark.parametrize("kind", KINDS)
def test_no_active_mode_sees_anything(kind: str) -> None:
    value = KINDS[kind]()
    with CountFunctions() as functions, CountOperations() as operations:
        encode_all(value)
    assert functions.seen == []
    assert operations.seen == []


@pytest.mark.parametrize("kind", KINDS)
def test_values_versions_strides_and_random_state_stay(kind: str) -> None:
    value = KINDS[kind]()
    before = value.clone()
    strided = value.layout is torch.strided
    facts = (value._version, value.stride() if strided else None, value.requires_grad, torch.get_rng_state().sum())
    numpy_state = np.random.get_state()[1].copy()
    encode_all(value)
    assert facts == (
        value._version,
        value.stride() if strided else None,
        value.requires_grad,
        torch.get_rng_state().sum(),
    )
    assert np.array_equal(numpy_state, np.random.get_state()[1])
    if value.dtype != torch.float4_e2m1fn_x2:
        assert torch.equal(value.to_dense(), before.to_dense())


def test_no_graph_is_built_and_grad_mode_stays_on() -> None:
    leaf = torch.randn(3, 4, requires_grad=True)
    value = (leaf * 2)[:, ::2]
    node = value.grad_fn
    encode_all(value)
    assert torch.is_grad_enabled()
    assert value.grad_fn is node
    assert read(ValueEncoder().encode(value))["requires_grad"] is True
    value.sum().backward()
    assert leaf.grad is not None


def test_inference_mode_works_inside_and_across_its_border() -> None:
    encoder = ValueEncoder(immediate=())
    with torch.inference_mode():
        made_inside = torch.randn(4)
        entries = [encoder.encode(made_inside), ValueEncoder().encode(made_inside)]
    entries += [encoder.encode(made_inside), encoder.encode(torch.randn(3))]
    with torch.inference_mode():
        encoder.resolve()
    assert all(read(entry)["Max"] is not None for entry in entries)


def test_selective_checkpointing_recomputes_the_same_with_measuring_inside() -> None:
    def policy(ctx, op, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if op == torch.ops.aten.mm.default else CheckpointPolicy.PREFER_RECOMPUTE

    def run(measured: bool) -> torch.Tensor:
        torch.manual_seed(0)
        x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)

        def block(x: torch.Tensor) -> torch.Tensor:
            h = torch.mm(x, w).t()
            if measured:
                encode_all(h)
            return torch.mm(h.sin(), w)

        context = lambda: create_selective_checkpoint_contexts(policy)  # noqa: E731
        checkpoint(block, x, use_reentrant=False, context_fn=context).sum().backward()
        return x.grad

    assert torch.equal(run(measured=False), run(measured=True))


def test_a_jit_trace_stays_the_same() -> None:
    def function(measured: bool):
        def body(x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            if measured:
                found = ValueEncoder().encode_sequence([y, y.t()])
                assert [entry["shape"] for entry in read(found)] == [[2, 3], [3, 2]]
                encode_all(y)
            return y + 1

        return body

    graphs = [str(torch.jit.trace(function(measured), torch.ones(2, 3)).graph) for measured in (False, True)]
    assert "mul" in graphs[0]
    assert graphs[0].count("aten::") == graphs[1].count("aten::")


def test_transforms_give_the_same_results() -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        encode_all(y)
        statistics(y)
        return (y * x).sum()

    x = torch.randn(3, 4)
    plain = torch.vmap(torch.func.grad(lambda x: (x.sin() * x).sum()))(x)
    assert torch.equal(torch.vmap(torch.func.grad(body))(x), plain)
    _, tangent = torch.func.jvp(body, (x,), (torch.ones_like(x),))
    assert tangent.isfinite()


def test_forward_mode_duals_are_measured_by_their_primal() -> None:
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.tensor([3.0, 4.0]), torch.ones(2))
        assert read(ValueEncoder().encode(dual))["Norm"] == 5.0
        encode_all(dual)
        assert forward_ad.unpack_dual(dual).tangent is not None


def test_importing_measure_imports_no_framework() -> None:
    code = (
        "import sys, msprobe.measure as m\n"
        "m.backend('cpu')\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'mindspore', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_arrays_are_measured_without_torch() -> None:
    code = (
        "import sys, numpy as np, msprobe.measure as m\n"
        "assert m.statistics(np.array([3.0, 4.0])).norm == 5.0\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("switch", ["0", "1"])
def test_the_environment_can_turn_native_kernels_off(switch: str) -> None:
    code = "import msprobe.measure as m, torch; print(m.backend('cpu'), m.statistics(torch.tensor([3.0, 4.0])).norm)"
    environment = {"MSPROBE_NO_NATIVE": switch, "PATH": ""}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.split()[1] == "5.0"
    assert result.stdout.split()[0] == "torch" or switch == "0"
