"""`msprobe replicas` finds the first record in which ranks part that should have the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import layout_programs as programs
import pytest
from ranks import run_ranks
from typer.testing import CliRunner

from msprobe.cli import app
from msprobe.compare.replicas import check_replicas

MIX = {"level": "mix", "risk_level": "ALL"}


def recorded(folder: Path, layout: str, fault: str | None, **config: Any) -> Path:
    run_ranks(2, programs.step, folder, layout, {**MIX, **config}, fault)
    return folder / "dump"


@pytest.mark.parametrize("layout", ["ddp", "tensor_parallel"])
def test_replicas_of_a_healthy_run_are_equal(tmp_path: Path, layout: str) -> None:
    result = check_replicas(recorded(tmp_path, layout, None))
    assert result.ranks == ("rank0", "rank1")
    assert result.checked > 5
    assert result.parted == ()


def test_the_parameter_in_which_ddp_ranks_part_is_named(tmp_path: Path) -> None:
    dump = recorded(tmp_path, "ddp", "weight")
    result = CliRunner().invoke(app, ["replicas", "-i", str(dump), "-o", str(tmp_path / "out")])
    assert result.exit_code == 1, result.output
    first = json.loads((tmp_path / "out/replicas.json").read_text("utf-8"))["parted"][0]
    assert (first["record"], first["value"]) == ("Module.blocks.1.up.Linear.forward.0", "parameters.weight")
    assert {part["rank"] for part in first["apart"]} == {"rank0", "rank1"}  # of two nobody has the majority
    assert "rank1" in result.output
    assert "Module.blocks.1.up.Linear.forward.0" in result.output


def test_bad_input_is_one_message(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["replicas", "-i", str(tmp_path / "none"), "-o", str(tmp_path)])
    assert result.exit_code == 2
