"""Which records mindstudio-probe writes for the models of tests/mindspore/dynamic_models.py.

Run it with the interpreter of a venv that has mindstudio-probe 26.2.0, mindspore 2.10.0 and numpy 1.26.4 (and nothing
of ours, since both packages are called msprobe); it writes tests/mindspore/peer_records.json. On a CPU target one of
its statistics has no kernel (``mint.norm``), so that function is replaced before it is imported.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1] / "tests" / "mindspore"
TARGET = TESTS / "peer_records.json"
LEVELS = ("L0", "L1", "mix")


def run_peer(model: str, level: str, folder: Path) -> None:
    """Train a model under the other tool, in this process."""
    import mindspore as ms  # noqa: PLC0415 - only in the process of the other tool
    import numpy as np  # noqa: PLC0415
    from mindspore import mint  # noqa: PLC0415

    mint.norm = lambda tensor: ms.Tensor(np.linalg.norm(tensor.asnumpy().astype(np.float32)).astype(np.float32))
    ms.runtime.launch_blocking()
    from msprobe.mindspore import PrecisionDebugger  # noqa: PLC0415

    sys.path.append(str(TESTS))
    import dynamic_models  # noqa: PLC0415

    section = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
    config = {"task": "statistics", "dump_path": str(folder / "dump"), "level": level, "statistics": section}
    (folder / "config.json").write_text(json.dumps(config))
    dynamic_models.train(model, PrecisionDebugger(config_path=str(folder / "config.json")), steps=1)


def records_of(folder: Path) -> dict[str, Any]:
    """Names of the records in the order of the file, with the parts of each, and what encloses them."""
    (dump,) = folder.glob("dump/step0/*/dump.json")
    data = json.loads(dump.read_text())["data"]
    shapes = {name: shape_of(record) for name, record in data.items()}
    return {"records": shapes, "parents": json.loads(dump.with_name("construct.json").read_text())}


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
    if len(sys.argv) == 4:
        run_peer(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
        return
    found: dict[str, dict[str, Any]] = {}
    for model in ("convolutions", "transformer"):
        for level in LEVELS:
            with tempfile.TemporaryDirectory() as folder:
                subprocess.run([sys.executable, __file__, model, level, folder], check=True, capture_output=True)
                found.setdefault(model, {})[level] = records_of(Path(folder))
            print(model, level, len(found[model][level]["records"]), "records")
    lines = [f'"{model}": {json.dumps(levels)}' for model, levels in found.items()]
    TARGET.write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
