"""Differences from the peer that are intended. Each has an entry in ``docs/limitations.md``, checked by the tool."""

from __future__ import annotations

DOCUMENTED: dict[str, str] = {
    "namespace": "functions of torch.linalg, torch.fft, ... keep their namespace in the name",
    "recompute": "a recomputed call has the name of the first call and #recompute, it does not shift names",
    "overwritten": "a second backward pass over a graph is a record of its own (#2), it does not overwrite the first",
    "argument-order": "gradients of an API's inputs are in argument order, null where there is none",
    "last-node": "an API of several autograd nodes has the gradients of its arguments, not those of its last node",
    "returned-input": "an API that returns its input has the gradient of that input, not that of the call before it",
    "view-of-base": "an in-place API on a view has the gradient of the view, not that of the whole base",
    "repeated-argument": "a tensor passed several times to one call has one gradient, the sum, at its first position",
    "keyword-arguments": "gradients of a module's keyword arguments are listed, too, after the positional ones",
    "used-inside": "a tensor that a module returns and also uses itself has one gradient, that of all its uses",
    "peer-perturbs": "the peer's module hooks change the run that it records; ours is bitwise the run without a tool",
    "null-positions": "gradient lists of a module keep a null for what has no gradient",
    "backward-parent": "the parent of a backward record is the backward of the forward record's parent",
    "null-statistics": "Mean and Norm of float64, integers and complex numbers are numbers, not null",
    "accumulation": "Mean and Norm are accumulated in float64: nothing overflows or underflows on the way",
    "signed-norm": "the Norm of a 0-dim value is its absolute value",
    "high-precision": "with precision high Mean and Norm are numbers, not null",
    "cut-by-scope": "a module that began before the scope, or a call that has only one side, is no record",
    "filtered-hierarchy": "construct.json has modules and what is recorded, not every call that is left out",
    "open-range": "a list entry selects what it names, the peer goes on after an in-place module that it names",
    "late-checksum": "md5 is of the value at the time of the call, not of what is in its memory a moment later",
    "empty-checksum": "the XOR checksum of a tensor without elements is zero, not null",
    "scalar-checksum": "the XOR checksum of a 0-dim value is a checksum, not the value itself",
    "compiler-frames": "frames of torch's compiler are left out of stacks, also where it is only switched off",
    "positional-type": "a positional dtype, device or other torch constant is encoded, not {}",
}

# APIs that torch composes of several differentiable operations. The peer's backward record of such an API holds what
# leaves the last operation, which is no argument of the call: it has another shape.
COMPOSED = frozenset(
    """
    Functional.kl_div Functional.linear Functional.multi_head_attention_forward Functional.prelu
    Functional.scaled_dot_product_attention Tensor.__matmul__ Torch.einsum Torch.matmul Torch.outer
    """.split()
)
# Of these it can even have the shape of an argument.
COMPOSED_ELEMENTWISE = frozenset({"Functional.cross_entropy", "Functional.l1_loss", "Functional.normalize"})

# Modules that return a tensor which they also use themselves: T5's position bias, a router's logits, a cell's state.
RETURN_WHAT_THEY_USE = (
    ".T5Block.",
    ".T5LayerSelfAttention.",
    ".T5LayerCrossAttention.",
    ".T5Attention.",
    ".MixtralModel.",
    ".MixtralTopKRouter.",
    ".LSTMCell.",
)

# dtypes for which the peer leaves Mean and Norm null.
NULL_AT_PEER = ("float64", "int", "uint", "complex", "bool")
