"""A torch without one of the private names records compiled functions by running them eagerly, and says so."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

from msprobe.graph.dynamo_hooks import PRIVATE_NAMES

SCRIPT = textwrap.dedent("""
    import importlib, sys
    import torch, torch._dynamo

    owner = importlib.import_module(sys.argv[1])
    *path, last = sys.argv[2].split(".")
    for part in path:
        owner = getattr(owner, part)
    kept = getattr(owner, last)

    from msprobe.pytorch import PrecisionDebugger
    tool = PrecisionDebugger(config_path="config.json")
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.GELU())
    compiled = torch.compile(model, backend="aot_eager")
    graphs = torch._dynamo.utils.counters["stats"]
    for _ in range(2):
        if sys.argv[3] == "deleted":
            delattr(owner, last)
        with_records = tool.capture(model)
        with_records.__enter__()
        if sys.argv[3] == "deleted":
            setattr(owner, last, kept)  # the user's own compilation needs it, too: only msprobe misses it
        compiled(torch.ones(1, 2)).sum().backward()
        with_records.__exit__(None, None, None)
        during = graphs["unique_graphs"]
    compiled(torch.ones(1, 2)).sum().backward()
    print(during, graphs["unique_graphs"])
""")


def run_step(folder, private, what):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"dump_path": str(folder / "dump"), "level": "mix"}))
    given = [private.module, private.path, what]
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, *given]
    done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    step = next((folder / "dump" / "step1").iterdir())
    notes = json.loads((step / "coverage.json").read_text())["notes"]
    return json.loads((step / "dump.json").read_text())["data"], notes, done


def test_without_private_names_the_records_are_those_of_the_eager_run(tmp_path):
    (private,) = (name for name in PRIVATE_NAMES if name.path.endswith("inline_call"))
    data, notes, done = run_step(tmp_path / "deleted", private, "deleted")
    whole, _, _ = run_step(tmp_path / "whole", private, "whole")
    assert list(data) == list(whole)
    assert all("fx" in record for name, record in whole.items() if "Functional" in name)
    assert not any("fx" in record for record in data.values())
    assert private.path in notes["torch.compile"]
    assert "ran eagerly" in notes["torch.compile"]
    assert done.stderr.count("ran eagerly while they were recorded") == 1
    assert done.stdout.split() == ["0", "1"]  # nothing was compiled in a recorded step; afterwards the user's graph is
