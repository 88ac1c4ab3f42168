"""A hundred processes that end at a random moment in every way there is: what was recorded before is there."""

from __future__ import annotations

import json
import random
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from dying_programs import LOG
from fault_process import Outcome

from msprobe.store import iter_records, read_dump, recover

SEEDS = 100
ENDINGS = (
    ("signal", signal.SIGKILL),
    ("signal", signal.SIGTERM),
    ("signal", signal.SIGINT),
    ("_exit", None),
    ("error", None),
    ("error in a handler", None),
    ("exit", None),
    ("abort", None),
)
#: Records per round of a program, and the names that round N leaves in the main file.
ROUNDS: dict[str, tuple[int, Callable[[int], list[str]]]] = {
    "calls": (1, lambda number: [f"Torch.relu.{number}.forward"]),
    "training": (
        16,
        lambda number: (
            [f"Module.{layer}.forward.{number}" for layer in ("0.Linear", "1.ReLU", "2.Linear")]
            + [f"Functional.relu.{number}.backward", f"Module.2.Linear.backward.{number}"]
        ),
    ),
    "tensors": (1, lambda number: [f"Torch.add.{number}.forward"]),
    "values": (1, lambda number: [f"loss.{number}.debug"]),
}
PROMPT_ENDINGS = ("error", "exit")
"""After these the interpreter ends in order, from between two rounds: not even the last record may be missing."""


def job(seed: int, place: Path) -> dict[str, Any]:
    """Draw one process from a seed."""
    chance = random.Random(seed)
    program = (*ROUNDS, "steps")[seed % 5]
    ending, number = ENDINGS[seed // 5 % len(ENDINGS)]
    # Slow programs live long enough for the one second, fast ones write more than the 1,000 records.
    slow = chance.random() < 0.5
    after = chance.uniform(1.2, 2.2) if slow else chance.uniform(0.02, 0.5)
    folder = place / f"seed{seed}"
    folder.mkdir()
    return {
        "work": "dying_programs:die",
        "folder": str(folder),
        "limit": 60.0,
        "together": 12,
        "kill": [after, number] if number else None,
        "kill_after": None if seed % 10 == 0 else LOG,  # a few may end before they have begun
        "arguments": {
            "program": program,
            "ending": ending,
            "seed": seed,
            "after": 60.0 if number else after,
            "pause": 0.02 if slow else 0.0,
        },
    }


def rounds_before(folder: Path, moment: float | None, records_per_round: int) -> int:
    """Return how many rounds had ended one second, or 1,000 records, before the end of the process."""
    lines = [line.split() for line in (folder / LOG).read_text().splitlines()] if (folder / LOG).exists() else []
    if moment is None:  # it ended itself, just after its last line or in the middle of a round
        moment = float(lines[-1][1]) if lines else 0.0
    in_time = sum(float(when) < moment - 1.0 for _, when in lines)
    return max(in_time, len(lines) - 1000 // records_per_round - 1, 0)


def test_a_hundred_ends_at_random_moments_lose_nothing_older(
    processes: Callable[[list[dict[str, Any]]], list[Outcome]], tmp_path: Path
) -> None:
    jobs = [job(seed, tmp_path) for seed in range(SEEDS)]
    checked: Counter[str] = Counter()
    for done, outcome in zip(jobs, processes(jobs), strict=True):
        arguments, folder = done["arguments"], Path(done["folder"])
        title = f"{folder.name}: {arguments['program']}, {arguments['ending']} {done['kill']}\n{outcome.err}"
        assert_ended_as_asked(arguments["ending"], done["kill"], outcome, title)
        if arguments["program"] == "steps":
            checked["steps"] += check_steps(folder, title)
        else:
            checked[arguments["program"]] += check_step(folder, arguments, outcome.signalled, title)
    assert all(checked[program] > 100 for program in ("calls", "training", "tensors", "values")), checked
    assert checked["steps"] > 20, checked


def assert_ended_as_asked(ending: str, kill: Any, outcome: Outcome, title: str) -> None:
    """The tool neither swallows an end nor makes another one of it, and says nothing of its own."""
    assert not outcome.overdue, title
    if ending == "signal":
        assert outcome.code == -kill[1] or kill[1] == signal.SIGINT, title
    elif ending.startswith("error"):
        assert outcome.code == 1, title
        assert "UserError: of the user" in outcome.err.splitlines()[-1], title
    else:
        assert outcome.code == {"_exit": 7, "exit": 0, "abort": -signal.SIGABRT}[ending], title
    if kill and kill[1] == signal.SIGINT:
        assert "KeyboardInterrupt" in outcome.err, title
    said = [line for line in outcome.warnings if "recorded nothing" not in line]  # said if it had not begun yet
    assert not said, title


def check_step(folder: Path, arguments: dict[str, Any], moment: float | None, title: str) -> int:
    """Read the only step of a process with every reader; return how many records had to be there."""
    per_round, names_of = ROUNDS[arguments["program"]]
    rounds = rounds_before(folder, moment, per_round)
    if arguments["ending"] in PROMPT_ENDINGS:
        rounds = len((folder / LOG).read_text().splitlines())
    expected = [name for number in range(rounds) for name in names_of(number)]
    main_file = "debug.json" if arguments["program"] == "values" else "dump.json"
    found = sorted(folder.glob(f"dump/step0/*/{main_file}"))
    if not found:  # the end came before the first write, perhaps between the folder and its file
        assert not expected, title
        return 0
    (main,) = found
    rank = main.parent
    before = read_dump(rank)
    missing = set(expected) - set(before.data)
    assert not missing, f"{len(missing)} of {len(expected)} records lost, such as {min(missing)}; {title}"
    assert [name for name, _ in iter_records(rank)] == list(before.data), title
    if arguments["ending"] in PROMPT_ENDINGS:
        assert before.complete, title
    check_recovered(folder / "dump", rank, main, set(before.data), title)
    if arguments["program"] == "tensors":
        check_tensors(rank, before.data, title)
    return len(expected)


def check_recovered(dump: Path, rank: Path, main: Path, names: set[str], title: str) -> None:
    """After `recover`, plain `json.load` reads every file and finds the same records."""
    states = {report.state for report in recover(dump).folders}
    assert states <= {"fine", "repaired"}, (states, title)
    assert set(json.loads(main.read_bytes())["data"]) == names, title
    for name in ("construct.json", "stack.json", "coverage.json"):
        if (rank / name).exists():
            assert isinstance(json.loads((rank / name).read_bytes()), dict), title
    assert {report.state for report in recover(dump).folders} == {"fine"}, title
    assert not list(rank.rglob("*.tmp")), title


def check_tensors(rank: Path, data: dict[str, Any], title: str) -> None:
    """Every tensor file that a record names is whole."""
    for name, record in [*data.items()][:: max(len(data) // 50, 1)]:
        # A call that was interrupted has no output.
        for entry in (*record["input_args"], *record.get("output", ())):
            if "data_name" in entry:
                tensor = torch.load(rank / "dump_tensor_data" / entry["data_name"], weights_only=True)
                assert list(tensor.shape) == entry["shape"], (name, title)


def check_steps(folder: Path, title: str) -> int:
    """Every step that had ended is finished, whenever that was; return how many there are."""
    ended = len((folder / LOG).read_text().splitlines()) if (folder / LOG).exists() else 0
    if not (folder / "dump").exists() or not list((folder / "dump").rglob("dump.json")):
        assert ended == 0, title
        return 0
    recover(folder / "dump")
    for number in range(ended):
        (rank,) = (folder / "dump" / f"step{number}").iterdir()
        dump = read_dump(rank)
        assert dump.complete, (number, title)
        assert "Module.2.Linear.backward.0" in dump.data, (number, title)
    for main in (folder / "dump").glob("step*/*/dump.json"):
        json.loads(main.read_bytes())
    return ended


def test_a_hundred_seeds_cover_every_program_with_every_ending(tmp_path: Path) -> None:
    drawn = {
        (done["arguments"]["program"], done["arguments"]["ending"], *(done["kill"] or ())[1:])
        for done in (job(seed, tmp_path) for seed in range(SEEDS))
    }
    assert len(drawn) == 5 * len(ENDINGS)


pytestmark = pytest.mark.slow
