"""Level L0 gives the same records for a compiled graph as for the dynamic graph of the same model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import cell_tap_scenarios as scenarios
import pytest

from msprobe.store import read_dump

if TYPE_CHECKING:
    from forked_mindspore import ForkedMindSpore


@pytest.mark.parametrize("precision", ["low", "high"])
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_static_l0_equals_dynamic_l0_record_by_record(
    task: str, precision: str, fresh_mindspore: ForkedMindSpore, tmp_path: Path
) -> None:
    dumps = {}
    for mode in ("graph", "dynamic"):
        folder = tmp_path / mode
        folder.mkdir()
        fresh_mindspore.value(scenarios.debugged_step, str(folder), {"task": task, "precision": precision}, mode)
        (rank,) = (folder / "dump" / "step0").iterdir()
        dumps[mode] = read_dump(rank)
    static, dynamic = dumps["graph"].data, dumps["dynamic"].data
    assert sorted(static) == sorted(dynamic)
    for name, record in dynamic.items():
        assert static[name] == record, name
    assert dumps["graph"].parents == dumps["dynamic"].parents
