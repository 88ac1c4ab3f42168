"""Differences from the peer that are intended. Each has an entry in ``docs/limitations.md``, checked by the tool."""

from __future__ import annotations

DOCUMENTED: dict[str, str] = {
    "namespace": "functions of torch.linalg, torch.fft, ... keep their namespace in the name",
    "recompute": "a recomputed call has the name of the first call and #recompute, it does not shift names",
    "overwritten": "a second backward pass over a graph is a record of its own (#2), it does not overwrite the first",
    "argument-order": "gradients of an API's inputs are in argument order, null where there is none",
    "last-node": "an API of several autograd nodes has the gradients of its arguments, not those of its last node",
    "null-positions": "gradient lists of a module keep a null for what has no gradient",
    "null-statistics": "Mean and Norm of float64, integers and complex numbers are numbers, not null",
    "signed-norm": "the Norm of a 0-dim value is its absolute value",
    "positional-type": "a positional dtype, device or other torch constant is encoded, not {}",
}

# APIs that torch composes of several differentiable operations. The peer's backward record of such an API holds what
# enters and leaves the last operation alone.
COMPOSED = frozenset({"Functional.cross_entropy"})

# dtypes for which the peer leaves Mean and Norm null.
NULL_AT_PEER = ("float64", "int", "uint", "complex", "bool")
