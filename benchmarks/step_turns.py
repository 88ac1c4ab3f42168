"""Tools side by side: each in a process of its own, and the steps take turns, so only one process runs at a time."""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from step_tools import Tool

WORKER = Path(__file__).with_name("step_worker.py")
#: OpenMP's threads look for work for some milliseconds after a step before they sleep.
PAUSE = 0.01


@dataclass(frozen=True, slots=True)
class Spread:
    """A median, the quartiles, and the smallest of a list of numbers."""

    median: float
    low: float
    high: float
    best: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        ordered = sorted(values)
        quarter = len(ordered) // 4
        return cls(statistics.median(ordered), ordered[quarter], ordered[-1 - quarter], ordered[0])


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one tool did to one model's step. Ratios are of the same round; times are in milliseconds."""

    model: str
    backend: str
    tool: str
    rounds: int
    wall: Spread
    ratio: Spread
    cpu_ratio: Spread
    best_ratio: float  # smallest time over the baseline's smallest: what gates compare
    extra_ms: float  # of the medians
    records: int
    bytes: int
    peak_mib: float


class Worker:
    """A process that runs one tool's step whenever it is asked."""

    def __init__(self, tool: Tool, python: str) -> None:
        self.tool = tool
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the worker
        self._process = subprocess.Popen(
            [python, "-W", "ignore", str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            bufsize=1,
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def ask(self, line: str) -> dict[str, Any]:
        """Send a line and wait for the answer.

        Raises
        ------
        RuntimeError
            The process ended instead of answering; the last line of its standard error is given.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            code = self._process.wait()
            self._errors.seek(0)
            said = self._errors.read().strip().splitlines() or ["nothing on standard error"]
            raise RuntimeError(f"{self.tool.name}: its process ended with code {code}: {said[-1]}")
        answered: dict[str, Any] = json.loads(answer)
        return answered


@dataclass(frozen=True, slots=True)
class Plan:
    """How a group of tools is measured: at most `rounds` steps each, at least three, about `seconds` in all."""

    model: str
    backend: str = ""
    rounds: int = 11
    seconds: float = 60.0
    threads: int = 2
    warm_up: int = 2
    folder: Path | None = None
    batch: int = 6  # processes beside the baseline's: all of them are in memory at once


def take_turns(
    plan: Plan, tools: Sequence[Tool], baseline: Tool, pythons: dict[str, str]
) -> tuple[list[StepResult], list[str]]:
    """Measure tools against their baseline, in batches that each have the baseline among them.

    Returns the results, and a line for each tool that could not be started.

    Raises
    ------
    RuntimeError
        The baseline could not be started, or a tool ended in the middle.
    """
    results: list[StepResult] = []
    failures: list[str] = []
    for batch in batches(tools, plan.batch):
        share = plan.seconds * len(batch) / max(1, len(tools))
        found, failed = _one_batch(plan, [baseline, *batch], pythons, share)
        results += found
        failures += failed
    return [result for at, result in enumerate(results) if result.tool != baseline.name or at == 0], failures


def batches(tools: Sequence[Tool], size: int) -> list[list[Tool]]:
    """Groups of at most `size`; tools with a limit of rounds stay apart: they would shorten the others' runs."""
    groups: list[list[Tool]] = []
    for limit in dict.fromkeys(tool.rounds for tool in tools):
        same = [tool for tool in tools if tool.rounds == limit]
        groups += [same[at : at + size] for at in range(0, len(same), size)]
    return groups


def _one_batch(
    plan: Plan, tools: Sequence[Tool], pythons: dict[str, str], seconds: float
) -> tuple[list[StepResult], list[str]]:
    rounds = min([plan.rounds, *(tool.rounds for tool in tools if tool.rounds is not None)])
    with ExitStack() as stack:
        workers, failures = _started(stack, plan, tools, pythons)
        times: list[list[dict[str, float]]] = [[] for _ in workers]
        end = time.monotonic() + seconds
        for number in range(rounds):
            if number >= 3 and time.monotonic() > end:
                break
            for turn in range(len(workers)):
                at = (turn + number) % len(workers)
                time.sleep(PAUSE)
                times[at].append(workers[at].ask("go"))
        ends = [worker.ask("end") for worker in workers]
    measured = zip(workers, times, ends, strict=True)
    return [_result(plan, worker.tool, mine, times[0], end) for worker, mine, end in measured], failures


def _started(
    stack: ExitStack, plan: Plan, tools: Sequence[Tool], pythons: dict[str, str]
) -> tuple[list[Worker], list[str]]:
    """Processes that are warm, one after another; the first tool is the baseline, without which nothing is measured."""
    order = {name: getattr(plan, name) for name in ("model", "backend", "threads", "warm_up")}
    order["folder"] = None if plan.folder is None else str(plan.folder)
    workers: list[Worker] = []
    failures: list[str] = []
    for tool in tools:
        worker = stack.enter_context(Worker(tool, pythons[tool.environment]))
        try:
            worker.ask(json.dumps({"kind": tool.kind, "config": tool.config, **order}))
            workers.append(worker)
        except RuntimeError as error:
            if not workers:
                raise
            failures.append(f"{plan.model}{' ' + plan.backend if plan.backend else ''}: {error}")
    return workers, failures


def _result(
    plan: Plan, tool: Tool, mine: list[dict[str, float]], base: list[dict[str, float]], end: dict[str, Any]
) -> StepResult:
    def ratios(clock: str) -> Spread:
        return Spread.of([a[clock] / b[clock] for a, b in zip(mine, base, strict=True)])

    wall, without = (Spread.of([step["wall"] for step in steps]) for steps in (mine, base))
    return StepResult(
        plan.model,
        plan.backend,
        tool.name,
        len(mine),
        wall,
        ratios("wall"),
        ratios("cpu"),
        wall.best / without.best,
        wall.median - without.median,
        end["records"],
        end["bytes"],
        end["peak_mib"],
    )
