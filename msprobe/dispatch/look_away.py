"""Level L2: gradients that have to run unwatched, because torch computes them differently under any dispatch mode."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

# torch has a second formula for the gradients of these autograd nodes, without in-place operators, and takes it while
# any dispatch mode is on. tests/dispatch/test_look_away.py looks for others among all operators.
UNWATCHED: dict[str, tuple[str, ...]] = {
    "prod": ("ProdBackward0", "ProdBackward1"),
    "cumprod": ("CumprodBackward0",),
    "masked_fill": ("MaskedFillBackward1",),
    "masked_fill_": ("MaskedFillBackward1",),
    "binary_cross_entropy_with_logits": ("BinaryCrossEntropyWithLogitsBackward0",),
}


class LookAway:
    """Takes the dispatch mode off while an autograd node runs.

    The autograd engine gives every node the modes that were on the thread which called ``backward``: what is taken off
    for one node is there again for the next, also after an error.

    Parameters
    ----------
    running : callable
        Whether kernels are being recorded.
    take_off, put_on : callable
        Take the mode off this thread's stack, and put it there.
    told : callable
        Called for each pass over a node, to count what is not seen.
    """

    def __init__(
        self,
        running: Callable[[], bool],
        take_off: Callable[[], None],
        put_on: Callable[[], None],
        told: Callable[[str], None],
    ) -> None:
        self._running, self._take_off, self._put_on, self._told = running, take_off, put_on, told

    def during(self, node: Any) -> None:
        """Do not watch what ``node`` runs, in this and in every later backward pass of the step."""
        kind = type(node).__name__

        def before(_gradients: Any) -> None:
            if self._running():
                self._told(kind)
                self._take_off()

        def after(_to_inputs: Any, _gradients: Any) -> None:
            if self._running():
                self._put_on()

        node.register_prehook(before)
        node.register_hook(after)


def nodes_since(since: int, roots: Iterable[Any]) -> list[Any]:
    """Autograd nodes with a sequence number of at least ``since`` that the gradients of ``roots`` flow through."""
    found: dict[Any, None] = {}
    pending = [node for node in roots if node is not None]
    while pending:
        node = pending.pop()
        if node not in found and node._sequence_nr() >= since:
            found[node] = None
            pending += [owner for owner, _ in node.next_functions if owner is not None]
    return list(found)
