"""Functions in fresh MindSpore processes, without paying its import each time.

As a program: imports MindSpore, then forks for every request read from stdin. Forking is sound here because the
importing process never runs an operator, so no thread pool exists in it.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Finished:
    """What came of a call.

    Attributes
    ----------
    value
        What the function returned (JSON values); None if it did not return.
    code
        Exit code of the process; 1 if the function raised.
    output
        What was written to stdout and stderr, the traceback included.
    """

    value: Any
    code: int
    output: str


class ForkedMindSpore:
    """The process that forks, as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0

    def __enter__(self) -> ForkedMindSpore:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=self._folder
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()
        self._process.wait()

    def call(self, function: Callable[..., Any], *arguments: Any, env: Mapping[str, str] | None = None) -> Finished:
        """Call a top-level function of a file in a fresh process; arguments and result are JSON values."""
        self._count += 1
        place = self._folder / str(self._count)
        place.mkdir()
        request = {
            "file": inspect.getfile(function),
            "function": function.__qualname__,
            "arguments": arguments,
            "env": dict(env or {}),
            "place": str(place),
        }
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        result = place / "result.json"
        value = json.loads(result.read_text()) if result.exists() else None
        return Finished(value, code, (place / "output.txt").read_text(errors="replace"))

    def value(self, function: Callable[..., Any], *arguments: Any, env: Mapping[str, str] | None = None) -> Any:
        """Like :meth:`call`, but the function must return; its result."""
        finished = self.call(function, *arguments, env=env)
        assert finished.code == 0, finished.output
        return finished.value


def _run(request: dict[str, Any]) -> None:
    place = Path(request["place"])
    output = os.open(place / "output.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(request["env"])
    spec = importlib.util.spec_from_file_location(Path(request["file"]).stem, request["file"])
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    value = getattr(module, request["function"])(*request["arguments"])
    (place / "result.json").write_text(json.dumps(value))


def _serve() -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever MindSpore prints is no reply
    import mindspore  # noqa: F401 - what the forks share

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = 0
            try:
                _run(json.loads(line))
            except BaseException as error:  # noqa: BLE001 - the parent gets the traceback as text
                traceback.print_exc()
                code = (error.code or 0) if isinstance(error, SystemExit) else 1
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        _, status = os.waitpid(child, 0)
        replies.write(f"{os.waitstatus_to_exitcode(status)}\n")
        replies.flush()


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parent))
    _serve()
