"""`self_check`: at its first recorded runs a graph runs without probes, too, on the same inputs.

The user gets the results of the probed run. The graph without probes runs after it, on the same tensors (detached, so
that no gradient reaches the user's), and only where that cannot be noticed: not if the graph writes to its inputs,
draws random numbers, communicates or calls operators that torch does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from msprobe.core.interruptions import pass_on_interruption
from msprobe.dispatch.api_mode import COMPILED_BACKWARD
from msprobe.dispatch.tensor_leaves import tensor_leaves
from msprobe.measure.bitwise import same_bits

RUNS = 2
"""How many runs of each graph are checked."""

_KNOWN = ("aten", "prims", "prim")
Compiled = Callable[..., Any]


class SelfCheck:
    """Compares the runs of one graph with runs of the graph without probes.

    Its text is the result, for coverage.json.

    Parameters
    ----------
    clean : callable or None
        The graph as the user's backend compiled it, without probes.
    skipped : str
        Why it is not run.

    Attributes
    ----------
    differs : bool
        Whether a result or a gradient has other bits.
    """

    def __init__(self, clean: Compiled | None, skipped: str = "") -> None:
        self._clean = clean
        self._skipped = skipped
        self._left = RUNS if clean is not None else 0
        self._equal = {"results": 0, "gradients": 0}
        self._differences: list[str] = []

    @classmethod
    def of(cls, module: torch.fx.GraphModule, compile_clean: Callable[[], Compiled]) -> SelfCheck:
        """The check of ``module``; compiles it without probes if it can be run twice."""
        reason = _has_effects(module)
        return cls(None, reason) if reason else cls(compile_clean())

    def __str__(self) -> str:
        if self._skipped:
            return f"not checked: {self._skipped}"
        if self._differences:
            return "; ".join(self._differences)
        counts = ", ".join(f"{name} of {count} runs" for name, count in self._equal.items() if count)
        return f"bitwise equal: {counts}" if counts else "not checked yet"

    @property
    def differs(self) -> bool:
        """Whether a result or a gradient has other bits."""
        return bool(self._differences)

    def begin(self, inputs: Sequence[Any]) -> CheckedRun | None:
        """The probed graph is about to run; None if this run is not checked."""
        if self._left <= 0:
            return None
        self._left -= 1
        try:
            return CheckedRun(self, inputs)
        except Exception as error:  # noqa: BLE001 - hook boundary
            pass_on_interruption(error)
            self.skip(f"{type(error).__name__}: {error}")
            return None

    def skip(self, reason: str) -> None:
        """Check no further run."""
        self._left = 0
        self._skipped = reason

    def compare(self, what: str, expected: Sequence[Any], found: Sequence[Any]) -> None:
        """Keep whether ``found``, of the probed run, has the bits of ``expected``."""
        if [_is_tensor(one) for one in expected] != [_is_tensor(one) for one in found]:
            self._differences.append(f"{what} cannot be compared: {len(expected)} without probes, {len(found)} with")
            return
        pairs = [pair for pair in zip(expected, found, strict=True) if _is_tensor(pair[0])]
        wrong = [at for at, pair in enumerate(pairs) if not same_bits(*pair)]
        if wrong:
            self._differences.append(f"{len(wrong)} of {len(pairs)} {what} differ, the first is number {wrong[0]}")
        else:
            self._equal[what] += 1

    def run_clean(self, inputs: Sequence[Any]) -> Any:
        """Run the graph without probes."""
        assert self._clean is not None  # noqa: S101 - only then is a run checked
        return self._clean(*inputs)


class CheckedRun:
    """One run that is checked.

    Parameters
    ----------
    check : SelfCheck
    inputs : sequence
        Of the graph.
    """

    def __init__(self, check: SelfCheck, inputs: Sequence[Any]) -> None:
        self._check = check
        self._inputs = inputs
        self._devices = sorted({one.device.index for one in inputs if isinstance(one, torch.Tensor) and one.is_cuda})
        self._random = self._random_states()
        self._versions = _versions(inputs)
        self._arrived: dict[tuple[int, int], torch.Tensor | None] = {}
        self._clean_outputs: list[tuple[tuple[int, int], torch.Tensor]] = []

    def end(self, output: Any) -> None:
        """The probed graph has returned ``output``: run the other one, and watch for the gradients. Never raises."""
        try:
            with torch._C.DisableTorchFunction():
                self._compare(output)
        except Exception as error:  # noqa: BLE001 - hook boundary
            pass_on_interruption(error)
            self._check.skip(f"the graph without probes: {type(error).__name__}: {error}")
        finally:
            self._inputs = ()

    def _compare(self, output: Any) -> None:
        check = self._check
        if not _equal_states(self._random, self._random_states()):
            check.skip("the graph draws random numbers")
            return
        if self._versions is None or self._versions != _versions(self._inputs):
            check.skip("the graph writes to its inputs, or they have no version counter")
            return
        leaves = [_detached(one) for one in self._inputs]
        try:
            clean = check.run_clean(leaves)
        finally:
            self._restore()
        expected, found = tensor_leaves(clean), tensor_leaves(output)
        check.compare("results", expected, found)
        if check.differs or not any(one.requires_grad for one in found):
            return
        self._watch(leaves, expected, found)

    def _watch(self, leaves: list[Any], expected: list[torch.Tensor], found: list[torch.Tensor]) -> None:
        """Have the gradients compared when the compiled backward graph has run."""
        nodes = {node for node in map(_compiled_node, found) if node is not None}
        twins = {node for node in map(_compiled_node, expected) if node is not None}
        if len(nodes) != 1 or len(twins) != 1:
            return
        for one, twin in zip(found, expected, strict=True):
            if one.grad_fn is not None and twin.grad_fn is not None:
                place = id(one.grad_fn), one.output_nr
                self._clean_outputs.append((place, twin))
                one.grad_fn.register_prehook(self._arriving(*place))
        wanted = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        nodes.pop().register_hook(self._leaving(twins.pop(), wanted))

    def _arriving(self, node: int, number: int) -> Callable[[Any], None]:
        def hook(gradients: Any) -> None:
            self._arrived.setdefault((node, number), gradients[number])

        return hook

    def _leaving(self, twin: Any, wanted: list[torch.Tensor]) -> Callable[[Any, Any], None]:
        def hook(gradients: Any, _: Any) -> None:
            pairs, self._clean_outputs = self._clean_outputs, []
            given = [(one, self._arrived.get(place)) for place, one in pairs]
            given = [(one, gradient) for one, gradient in given if gradient is not None]
            self._arrived = {}
            if not given or torch.is_grad_enabled():  # a second pass, or one whose graph is kept
                return
            try:
                self._run_backward(twin, wanted, given, gradients)
            except Exception as error:  # noqa: BLE001 - hook boundary
                pass_on_interruption(error)
                self._check.skip(f"the backward graph without probes raised {type(error).__name__}: {error}")
            finally:
                self._restore()

        return hook

    def _run_backward(self, twin: Any, wanted: list[torch.Tensor], given: list[Any], found: Any) -> None:
        self._random = self._random_states()
        expected: list[Any] = []
        handle = twin.register_hook(lambda gradients, _: expected.extend(gradients))
        try:
            with torch._C.DisableTorchFunction():
                outputs, gradients = zip(*given, strict=True)
                torch.autograd.grad(outputs, wanted, gradients, allow_unused=True)
        finally:
            handle.remove()
        self._check.compare("gradients", expected, list(found)[: len(expected)])  # one more: the number of the run

    def _random_states(self) -> list[torch.Tensor]:
        return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in self._devices)]

    def _restore(self) -> None:
        """Leave the random number generators as the probed run left them."""
        before, now = self._random, self._random_states()
        if _equal_states(before, now):
            return
        torch.set_rng_state(before[0])
        for device, state in zip(self._devices, before[1:], strict=True):
            torch.cuda.set_rng_state(state, device)


def _has_effects(module: torch.fx.GraphModule) -> str:
    """Why a graph cannot be run twice without being noticed; empty if it can."""
    for node in module.graph.nodes:
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            return f"the graph has the higher-order operator {node.target.name()}"
        if isinstance(node.target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
            name = str(node.target)
            if name.partition(".")[0].partition("::")[0] not in _KNOWN:
                return f"the graph calls the operator {name}"
        if getattr(node.target, "__module__", None) and str(node.target.__module__).startswith("torch.distributed"):
            return "the graph communicates"
    return ""


def _versions(inputs: Sequence[Any]) -> list[int] | None:
    tensors = [one for one in inputs if isinstance(one, torch.Tensor)]
    if any(one.is_inference() for one in tensors):
        return None
    return [one._version for one in tensors]


def _equal_states(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> bool:
    return all(same_bits(*pair) for pair in zip(left, right, strict=True))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _detached(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().requires_grad_(value.requires_grad)


def _compiled_node(tensor: torch.Tensor) -> Any:
    """The compiled node that a result comes from, also through the views that torch makes of it."""
    node = tensor.grad_fn
    while node is not None and type(node).__name__ != COMPILED_BACKWARD:
        following = [after for after, _ in node.next_functions if after is not None]
        node = following[0] if len(following) == 1 else None
    return node
