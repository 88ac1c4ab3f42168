"""Level L2: torch computes some gradients differently under any dispatch mode; they are those of the run without it."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from debugger_traces import dump_of
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

Debugger = Callable[..., Any]
KERNELS = {"level": "L2", "risk_level": "ALL", "statistics": {"list": ["Aten."]}}
# LAPACK gives other last bits when the same matrix lies at another address.
DEPENDS_ON_ADDRESSES = {"linalg.lstsq", "linalg.pinv", "pinverse", "linalg.lu_factor_ex"}


class Watching(TorchDispatchMode):
    """A mode that does nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def numbers(*shape: int, seed: int = 3) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


FUNCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "ProdBackward0": lambda x, _: x[:2, :2].prod(),
    "ProdBackward1": lambda x, _: x.prod(0),
    "CumprodBackward0": lambda x, _: x.cumprod(1),
    "MaskedFillBackward1": lambda x, value: x.masked_fill(x > 0, value),
    "BinaryCrossEntropyWithLogitsBackward0": lambda x, _: F.binary_cross_entropy_with_logits(
        x, numbers(64, 64, seed=5).sigmoid(), reduction="none"
    ),
}


def gradients(function: Callable[..., torch.Tensor]) -> list[torch.Tensor | None]:
    x, value = numbers(64, 64).requires_grad_(), torch.tensor(0.3, requires_grad=True)
    result = function(x, value)
    (result * numbers(*result.shape, seed=7)).sum().backward()
    return [x.grad, value.grad]


def same(one: list[torch.Tensor | None], other: list[torch.Tensor | None]) -> bool:
    return [None if t is None else t.numpy().tobytes() for t in one] == [
        None if t is None else t.numpy().tobytes() for t in other
    ]


@pytest.mark.parametrize("node", FUNCTIONS)
def test_a_gradient_with_a_second_formula_is_that_of_the_run_without_the_tool(debugger: Debugger, node: str) -> None:
    plain = gradients(FUNCTIONS[node])
    tool = debugger(**KERNELS)
    with tool.capture():
        seen = gradients(FUNCTIONS[node])
        torch.exp(torch.ones(2, requires_grad=True)).sum().backward()
    assert same(plain, seen)
    dump = dump_of(tool)
    assert dump.coverage is not None
    assert dump.coverage["not_recorded"] == {f"kernels of {node}, which computes differently while watched": 1}
    assert dump.coverage["notes"] == {}
    assert "Aten.sum.default.0.forward" in dump.data
    later = [name for name, parent in dump.parents.items() if parent == "Torch.exp.0.backward"]
    assert later  # what runs after the node is seen again


def test_without_looking_away_such_a_gradient_would_differ() -> None:
    function = FUNCTIONS["ProdBackward1"]
    plain = gradients(function)
    with Watching():
        assert not same(plain, gradients(function))


def test_where_the_tool_cannot_look_away_it_says_so(debugger: Debugger) -> None:
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                inner = gradient.detach().requires_grad_()
                return torch.autograd.grad(torch._C._VariableFunctions.prod(inner, 0).sum(), inner)[0]

    tool = debugger(**KERNELS)
    with tool.capture(), torch._C.DisableTorchFunction():
        Product.apply(torch.ones(3, 3, requires_grad=True)).sum().backward()
    coverage = dump_of(tool).coverage
    assert coverage is not None
    assert "Aten.prod.dim_int" in coverage["notes"]["perturbed"]


def test_no_gradient_of_any_operator_of_torch_differs_while_kernels_are_recorded(debugger: Debugger) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = list(reproducible_cases(samples=3))
        with debugger(**KERNELS).capture():
            seen = [results(operator, sample) for operator, sample, _ in cases]
    differ = [case[0].name for case, found in zip(cases, seen, strict=True) if found != case[2]]
    assert differ == []
    assert len(cases) > 700


def reproducible_cases(samples: int) -> Iterator[tuple[Any, Any, list[bytes | None]]]:
    """Operators with arguments and what they and their gradients are, unless that changes from call to call."""
    from torch.testing._internal.common_methods_invocations import op_db

    for operator in op_db:
        usable = operator.supports_autograd and operator.supports_dtype(torch.float32, "cpu")
        if not usable or operator.name in DEPENDS_ON_ADDRESSES:
            continue
        for sample in itertools.islice(operator.sample_inputs("cpu", torch.float32, requires_grad=True), samples):
            plain = results(operator, sample)
            if plain is not None and plain == results(operator, sample):
                yield operator, sample, plain


def results(operator: Any, sample: Any) -> list[bytes | None] | None:
    """Outputs and gradients, bit by bit; None if the operator takes no such arguments."""
    leaves: list[torch.Tensor] = []

    def fresh(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        copy = value.detach().clone().requires_grad_(value.requires_grad)
        leaves.extend([copy] if copy.requires_grad else [])
        return copy

    torch.manual_seed(0)
    arguments = tree_map(fresh, (sample.input, sample.args, sample.kwargs))
    try:
        outputs = tree_leaves(operator(arguments[0], *arguments[1], **arguments[2]))
        outputs = [output for output in outputs if isinstance(output, torch.Tensor)]
        roots = [output for output in outputs if output.requires_grad]
        weights = [torch.ones_like(root) * 0.7 for root in roots]
        found = torch.autograd.grad(roots, leaves, weights, allow_unused=True) if roots else ()
        everything = (*(output.detach() for output in outputs), *found)
        return [
            None if t is None else t.resolve_conj().resolve_neg().contiguous().numpy().tobytes() for t in everything
        ]
    except (RuntimeError, TypeError, NotImplementedError, ValueError):
        return None
