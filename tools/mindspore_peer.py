"""Which records mindstudio-probe writes for the models of tests/mindspore/dynamic_models.py.

Run it with the interpreter of a venv that has mindstudio-probe 26.2.0, mindspore 2.10.0 and numpy 1.26.4 (and nothing
of ours, since both packages are called msprobe); it writes tests/mindspore/peer_records.json. ``mindspore_parity.py``
compares values, too.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from mindspore_runs import LEVELS, MODELS, MODELS_FOLDER, Case, Run, run_cases

TARGET = MODELS_FOLDER / "peer_records.json"


def records_of(run: Run) -> dict[str, Any]:
    """Names of the first step's records in the order of the file, with the parts of each, and what encloses them."""
    dump = run.steps()["step0"]
    return {"records": {name: shape_of(record) for name, record in dump.data.items()}, "parents": dump.construct}


def shape_of(value: Any) -> Any:
    """A record without its numbers: what kinds of values stand where."""
    if isinstance(value, list):
        return [shape_of(item) for item in value]
    if isinstance(value, dict) and isinstance(value.get("type"), str):
        kept = ("type", "dtype", "shape") if "shape" in value else ("type", "value")
        return {key: value.get(key) for key in kept}
    if isinstance(value, dict):
        return {key: shape_of(item) for key, item in value.items()}
    return value


def main() -> None:
    """Run every model at every level, each in a process of its own."""
    cases = [Case(model, level) for model in MODELS for level in LEVELS]
    with tempfile.TemporaryDirectory() as folder:
        runs = run_cases(sys.executable, cases, Path(folder))
        found: dict[str, dict[str, Any]] = {model: {} for model in MODELS}
        for case, run in runs.items():
            found[case.model][case.level] = records_of(run)
            print(case.title, len(found[case.model][case.level]["records"]), "records")
    lines = [f'"{model}": {json.dumps(levels)}' for model, levels in found.items()]
    TARGET.write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
