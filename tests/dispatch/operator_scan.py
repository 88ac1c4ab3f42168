"""Gradients of every operator of torch, with and without level L2: prints how many were compared, and which differ.

Usage: python operator_scan.py FOLDER
"""

from __future__ import annotations

import itertools
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

from msprobe.pytorch import PrecisionDebugger

# LAPACK gives other last bits when the same matrix lies at another address.
DEPENDS_ON_ADDRESSES = {"linalg.lstsq", "linalg.pinv", "pinverse", "linalg.lu_factor_ex"}


def main(folder: str) -> None:
    config = {"task": "statistics", "level": "L2", "risk_level": "ALL", "dump_path": f"{folder}/dump"}
    file = Path(folder, "config.json")
    file.write_text(json.dumps({**config, "statistics": {"list": ["Aten."]}}), encoding="utf-8")
    cases = list(reproducible_cases(samples=3))
    with PrecisionDebugger(file).capture():
        seen = [results(operator, sample) for operator, sample, _ in cases]
    differ = [case[0].name for case, found in zip(cases, seen, strict=True) if found != case[2]]
    print(json.dumps({"compared": len(cases), "differ": differ}))


def reproducible_cases(samples: int) -> Iterator[tuple[Any, Any, list[bytes | None]]]:
    """Operators with arguments and what they and their gradients are, unless that changes from call to call."""
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


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1])
