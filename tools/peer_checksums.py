"""Compare the checksums of msprobe with those of mindstudio-probe, and with the recorded ones of the tests.

The peer needs an environment of its own (both packages are called ``msprobe``) with the same version of torch::

    python tools/peer_checksums.py --peer-python peer/bin/python            # check
    python tools/peer_checksums.py --peer-python peer/bin/python --record   # record the peer's values anew

Where the peer has a checksum, ours must be the same text. Where it has none (an error, null, or the value of a single
number in its place) ours is the documented one, which tests/measure/test_measure_peer_checksums.py computes by itself.
Exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from checksum_cases import MODES
from peer_python import add_peer_python

HERE = Path(__file__).resolve().parent
RECORDED = HERE.parent / "tests" / "measure" / "peer_checksums.json"
RUN_LIMIT_S = 300


def main() -> int:
    """Run what the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_peer_python(parser)
    parser.add_argument("--record", action="store_true", help=f"write the peer's values to {RECORDED.name}")
    options = parser.parse_args()
    peer = {mode: _run(options.peer_python, mode) for mode in MODES}
    if options.record:
        RECORDED.write_text(json.dumps(peer, indent=1) + "\n", encoding="utf-8")
    recorded = json.loads(RECORDED.read_text("utf-8"))
    wrong = 0
    for mode in MODES:
        ours = _run(sys.executable, mode)
        has_checksum = [case for case, value in peer[mode].items() if is_checksum(value)]
        for case in has_checksum:
            if ours.get(case) != peer[mode][case]:
                wrong += 1
                print(f"{mode} of {case}: ours {ours.get(case)}, peer {peer[mode][case]}")
        for case in sorted(recorded[mode].keys() | peer[mode].keys()):
            if recorded[mode].get(case) != peer[mode].get(case):
                wrong += 1
                print(f"{mode} of {case}: recorded {recorded[mode].get(case)}, peer now {peer[mode].get(case)}")
        print(f"{mode}: {len(peer[mode])} cases, {len(has_checksum)} with a checksum of the peer")
    return 1 if wrong else 0


def is_checksum(value: object) -> bool:
    """Whether a recorded value is a checksum, and not an error, null or a number."""
    return isinstance(value, str) and not value.startswith("error")


def _run(python: str, mode: str) -> dict[str, object]:
    # A PYTHONPATH that leads to one of the tools would hide the other.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    with tempfile.TemporaryDirectory(prefix="checksums_") as name:
        out = Path(name) / "found.json"
        command = [python, str(HERE / "checksum_cases.py"), mode, str(out)]
        done = subprocess.run(
            command, cwd=name, env=environment, capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False
        )
        if not out.is_file():
            raise SystemExit(f"{python}: exit code {done.returncode}\n{done.stderr[-3000:]}")
        found: dict[str, object] = json.loads(out.read_text("utf-8"))
    return found


if __name__ == "__main__":
    sys.exit(main())
