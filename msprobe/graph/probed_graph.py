"""How a compiled graph with probes runs: in place of the program's own, or beside it.

A compiler that fuses operators computes other last bits where it is made to store a value in between, which a probe
does. So the program's values come from the graph without probes, and the one with probes runs beside it
(:mod:`msprobe.graph.twin_run`). Where operators run one by one, or a graph cannot be run twice, there is one run.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import torch

from msprobe.core.interruptions import pass_on_interruption
from msprobe.dispatch.api_mode import hidden
from msprobe.graph.graph_plan import REGISTRY, GraphPlan
from msprobe.graph.twin_run import TwinRun

if TYPE_CHECKING:
    from msprobe.dispatch.api_mode import ApiMode
    from msprobe.graph.effects import Effects
    from msprobe.graph.recorder import GraphRecorder
    from msprobe.graph.self_check import SelfCheck

Compiled = Callable[..., Any]


class Way:
    """Where the values of the program come from when a graph is recorded.

    Its text says so in coverage.json.

    Parameters
    ----------
    fuses : bool
        Whether probes can change what the compiler makes of the graph.
    hindrance : str
        Why the graph cannot be run twice, empty if it can.

    Attributes
    ----------
    beside : bool
        Whether they come from the graph without probes.
    perturbs : bool
        Whether probes can change last bits of them.
    """

    def __init__(self, *, fuses: bool, hindrance: str) -> None:
        self._fuses = fuses
        self._hindrance = hindrance

    @property
    def beside(self) -> bool:
        """Whether the graph with probes runs beside the one without."""
        return self._fuses and not self._hindrance

    @property
    def perturbs(self) -> bool:
        """Whether probes can change last bits of what the program computes."""
        return self._fuses and bool(self._hindrance)

    def give_up(self, reason: str) -> None:
        """From now on the graph with probes runs in place of the one without."""
        self._hindrance = reason

    def __str__(self) -> str:
        if self.beside:
            return "without probes; the graph with probes ran beside, on the same values"
        if self._fuses:
            return f"with probes, which can change last bits; it did not run beside because {self._hindrance}"
        return "with probes, which change nothing: this backend runs operators one by one"


@dataclass(frozen=True, slots=True)
class Forms:
    """A graph of Dynamo, compiled.

    Attributes
    ----------
    probed : callable
        With probes; takes the number of the run as one more input.
    clean : callable or None
        As the user's backend compiles it for the user; None if it is not needed.
    effects : Effects
    way : Way
    check : SelfCheck or None
        Compares the two.
    """

    probed: Compiled
    clean: Compiled | None
    effects: Effects
    way: Way
    check: SelfCheck | None

    def with_probes(self, number: int) -> Callable[[Sequence[Any]], Any]:
        """The form with probes, for run ``number``."""
        return lambda inputs: self.probed(*inputs, torch.tensor(number, device="cpu"))

    def without_probes(self, inputs: Sequence[Any]) -> Any:
        """Run the form without them."""
        assert self.clean is not None  # noqa: S101 - only then is a graph run twice
        return self.clean(*inputs)


@dataclass(slots=True)
class OpenRun:
    """A run of a graph that is being recorded.

    Attributes
    ----------
    recorder : GraphRecorder
    number : int
        Of the run.
    depth : int
        How many module calls were open before.
    failed : bool
        Whether its records are lost.
    """

    recorder: GraphRecorder
    number: int
    depth: int
    failed: bool = False

    @classmethod
    def enter(cls, plan: GraphPlan) -> OpenRun | None:
        """A graph is about to run; None if it is not recorded."""
        recorder = REGISTRY.recorder()
        if recorder is None:
            return None
        depth = len(recorder.capture.threads.modules)
        try:
            number = recorder.enter(plan, frame_of(plan.root))
        except Exception as error:  # noqa: BLE001 - hook boundary
            recorder.capture.failed(f"calls of compiled graph {plan.number}", error)
            return None
        return cls(recorder, number, depth) if number >= 0 else None

    def fail(self) -> None:
        """The graph raised."""
        if not self.failed:
            self.failed = True
            self.recorder.fail(self.number, self.depth)

    def leave(self) -> None:
        """The graph has run."""
        if self.failed:
            return
        try:
            self.recorder.leave(self.number)
        except Exception as error:  # noqa: BLE001 - hook boundary
            self.recorder.capture.failed("records of a compiled graph", error)


class ProbedGraph:
    """A compiled graph that tells the recorder when it runs.

    Parameters
    ----------
    forms : Forms
    plan : GraphPlan
    mode : callable
        Returns the mode to keep off the stack meanwhile, None if there is none.
    dropped : callable
        Told why the graph runs without probes from now on.
    """

    def __init__(
        self, forms: Forms, plan: GraphPlan, mode: Callable[[], ApiMode | None], dropped: Callable[[str], None]
    ) -> None:
        self._forms = forms
        self._plan = plan
        self._mode = mode
        self._dropped = dropped
        self._lost = False

    def __call__(self, *inputs: Any) -> Any:
        """Run the graph; its calls are recorded if a step is."""
        mode = self._mode()
        run = None if self._lost else OpenRun.enter(self._plan)
        try:
            with contextlib.nullcontext() if mode is None else hidden(mode):
                output = self._run(inputs, run)
        except BaseException:
            if run is not None:
                run.fail()
            raise
        if run is not None:
            run.leave()
        return output

    def _run(self, inputs: tuple[Any, ...], run: OpenRun | None) -> Any:
        forms = self._forms
        if run is None:
            return forms.without_probes(inputs) if forms.clean is not None else forms.with_probes(-1)(inputs)
        if forms.clean is not None:
            if forms.way.beside:
                return self._beside(inputs, run)
            if forms.check is not None and forms.check.wants("results"):
                return self._checked(inputs, run)
        return forms.with_probes(run.number)(inputs)

    def _beside(self, inputs: tuple[Any, ...], run: OpenRun) -> Any:
        """The program gets the results of the form without probes."""
        forms = self._forms
        twin = self._twin_run(inputs)
        if twin is None:
            return forms.with_probes(run.number)(inputs)
        output = forms.without_probes(inputs)
        try:
            nodes = twin.nodes(output)
        except LookupError as error:
            self._give_up(str(error))
            if twin.unchanged():
                return forms.with_probes(run.number)(inputs)
            nodes = []
            run.recorder.capture.failed(f"gradients of compiled graph {self._plan.number}", error)
        try:
            self._second(twin, nodes, output, forms.with_probes(run.number))
        except Exception as error:  # noqa: BLE001 - hook boundary
            pass_on_interruption(error)
            self._lose(error, run)
        return output

    def _lose(self, error: Exception, run: OpenRun) -> None:
        """The form with probes raised beside the program: go on without its records."""
        run.recorder.capture.failed(f"compiled graph {self._plan.number} beside the program", error)
        run.fail()
        if isinstance(error, torch.OutOfMemoryError | MemoryError):
            self._give_up("there was not enough memory")
        else:
            self._lost = True
            self._dropped(f"{type(error).__name__}: {error}")

    def _checked(self, inputs: tuple[Any, ...], run: OpenRun) -> Any:
        """The program gets the results of the form with probes; the other is run to compare."""
        forms = self._forms
        twin = self._twin_run(inputs)
        output = forms.with_probes(run.number)(inputs)
        if twin is None:
            return output
        try:
            nodes = twin.nodes(output)
        except LookupError:
            nodes = []
        try:
            self._second(twin, nodes, output, forms.without_probes)
        except Exception as error:  # noqa: BLE001 - hook boundary
            pass_on_interruption(error)
            self._give_up(f"the graph without probes: {type(error).__name__}: {error}")
        return output

    def _second(self, twin: TwinRun, nodes: list[Any], output: Any, form: Callable[[Sequence[Any]], Any]) -> None:
        """Run the second form, and its backward graphs when those at ``nodes`` have run."""
        watcher = _Watcher(self._forms.check, self._plan.number)
        first = twin.results(output)
        second = twin.run(form)
        watcher.compare("results", first, second)
        if nodes:
            twin.follow(nodes, second, watcher)

    def _twin_run(self, inputs: tuple[Any, ...]) -> TwinRun | None:
        """Get ready for a second run; None if that cannot be."""
        try:
            reason = _hindrance_now()
            if not reason:
                return TwinRun(self._forms.effects, inputs)
        except Exception as error:  # noqa: BLE001 - hook boundary
            pass_on_interruption(error)
            reason = f"its inputs cannot be handed over twice: {type(error).__name__}: {error}"
        self._give_up(reason)
        return None

    def _give_up(self, reason: str) -> None:
        self._forms.way.give_up(reason)
        if self._forms.check is not None:
            self._forms.check.skip(reason)


class _Watcher:
    """Compares gradients, and says when there are none."""

    def __init__(self, check: SelfCheck | None, graph: int) -> None:
        self._check = check
        self._graph = graph

    def compare(self, what: str, first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> None:
        """Both forms have computed ``what``."""
        if self._check is not None:
            self._check.compare(what, first, second)

    def failed(self, what: str, error: Exception) -> None:
        """The second form raised."""
        if self._check is not None:
            self._check.skip(f"{what} of the second form: {type(error).__name__}: {error}")
        recorder = REGISTRY.recorder()
        if recorder is not None:
            recorder.capture.failed(f"{what} of compiled graph {self._graph} beside the program", error)


def _hindrance_now() -> str:
    """Why no graph can be run twice at the moment; empty if it can."""
    compiler = sys.modules.get("torch._dynamo.compiled_autograd")
    if getattr(compiler, "compiled_autograd_enabled", False) or torch._dynamo.config.compiled_autograd:
        return "its backward pass is compiled as a whole"
    return ""


def frame_of(root: CodeType) -> FrameType | None:
    """The frame that runs the compiled code of ``root``: another code object of the same name and file."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code.co_name == root.co_name and code.co_filename == root.co_filename:
            return frame
        frame = frame.f_back
    return None
