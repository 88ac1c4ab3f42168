"""``msprobe run`` runs a program as plain Python does: compared with plain Python, in real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import zipfile
from pathlib import Path

import pytest

NO_TORCH = "msprobe run: the program did not import torch, so nothing was recorded\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working folder with config.json."""
    (tmp_path / "config.json").write_text(json.dumps({"dump_path": "dump"}))
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text).lstrip(), encoding="utf-8")
    return path


def start(folder: Path, *command: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        # A background job of a shell inherits an ignored SIGINT; a handler becomes the default one in the new program.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509 - no lock is taken
    )


def both(folder: Path, *arguments: str, **environment: str) -> tuple[str, str, int]:
    """Run a program that does not import torch plainly and under msprobe; the results must agree and are returned."""
    launcher = ["-m", "msprobe", "run", "-c", "config.json"]
    processes = [
        start(folder, sys.executable, *arguments, **environment),
        start(folder, sys.executable, *launcher, *arguments, **environment),
    ]
    (out, err), (our_out, our_err) = (process.communicate(timeout=60) for process in processes)
    assert our_err.endswith(NO_TORCH)
    assert (our_out, our_err.removesuffix(NO_TORCH), processes[1].returncode) == (out, err, processes[0].returncode)
    return out, err, processes[0].returncode


DESCRIBE = """
    import sys, __main__
    import neighbour
    class Local: pass
    print(__name__, __file__, __doc__, __package__, __spec__, type(__loader__).__name__, __main__.Local is Local)
    print(sorted(globals()), sys.argv, sys.path)
    print(open("config.json").read(), Local.__module__, neighbour.__file__)
    import pickle, inspect, warnings
    print(pickle.loads(pickle.dumps(Local)) is Local, inspect.getsource(Local))
    warnings.warn("seen once")
    print("no future import", __annotations__ if sys.version_info < (3, 14) else "")
    def annotated(x: undefined_name = 1) -> None: ...
"""


def test_a_script_sees_the_main_module_arguments_path_and_folder_of_plain_python(folder: Path) -> None:
    write(folder / "below" / "script.py", DESCRIBE.replace("undefined_name", "int"))
    write(folder / "below" / "neighbour.py", "")
    out, err, code = both(folder, "below/script.py", "one", "--two", "-c", "x", "--", "-m")
    assert code == 0
    assert "UserWarning: seen once" in err
    assert "['below/script.py', 'one', '--two', '-c', 'x', '--', '-m']" in out


def test_annotations_are_evaluated_as_the_script_asks(folder: Path) -> None:
    write(folder / "script.py", "def f(x: undefined_name = 1) -> None: ...\n")
    _, err, code = both(folder, "script.py")
    assert code == 1 or sys.version_info >= (3, 14)
    assert "NameError" in err or sys.version_info >= (3, 14)


def test_a_linked_script_imports_from_the_folder_of_its_target(folder: Path) -> None:
    write(folder / "real" / "script.py", DESCRIBE.replace("undefined_name", "int"))
    write(folder / "real" / "neighbour.py", "")
    (folder / "link.py").symlink_to(folder / "real" / "script.py")
    assert both(folder, "link.py")[2] == 0


@pytest.mark.parametrize("target", ["package", "package.inner", "single"])
def test_a_module_runs_as_with_python_m(folder: Path, target: str) -> None:
    text = "import sys\nprint(__name__, __file__, __spec__.name, __package__, sys.argv, sys.path[0])\n"
    for name in ("package/__init__", "package/__main__", "package/inner", "single"):
        write(folder / f"{name}.py", text)
    out, _, code = both(folder, "-m", target, "--flag", "-m")
    assert code == 0
    assert "__main__" in out


def test_a_module_that_fails_or_is_missing_ends_as_with_python_m(folder: Path) -> None:
    write(folder / "failing.py", "raise RuntimeError('inside')\n")
    assert "RuntimeError: inside" in both(folder, "-m", "failing")[1]
    assert "No module named missing" in both(folder, "-m", "missing")[1]


@pytest.mark.parametrize("packed", [False, True], ids=["folder", "zip"])
def test_a_folder_or_zip_file_with_a_main_runs(folder: Path, packed: bool) -> None:
    write(folder / "app" / "__main__.py", "import sys, neighbour\nprint(sys.argv, sys.path[0], __name__)\n")
    write(folder / "app" / "neighbour.py", "")
    if packed:
        with zipfile.ZipFile(folder / "app.zip", "w") as archive:
            for path in (folder / "app").iterdir():
                archive.write(path, path.name)
    assert both(folder, "app.zip" if packed else "app", "--x")[2] == 0


ENDINGS = {
    "exit code": ("raise SystemExit(7)", 7),
    "exit message": ("import sys; sys.exit('goodbye')", 1),
    "exit without code": ("exit()", 0),
    "exit functions": ("import atexit; atexit.register(print, 'last'); exit(3)", 3),
    "error": ("def f():\n    raise ValueError('wrong')\nf()", 1),
    "error with a cause": ("try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('x') from e", 1),
    "error while handling": ("try:\n    1 / 0\nexcept ZeroDivisionError:\n    undefined", 1),
    "syntax": ("x = (1,\ny = 2\n", 1),
    "own hook": ("import sys\nsys.excepthook = lambda *a: print(a[0], a[2].tb_lineno, a[2].tb_next)\nraise OSError", 1),
    "encoding": ("# -*- coding: latin-1 -*-\nprint('ä')", 0),
    "interrupt": ("raise KeyboardInterrupt", -signal.SIGINT),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_exit_code_and_traceback_are_those_of_plain_python(folder: Path, ending: str) -> None:
    text, expected = ENDINGS[ending]
    write(folder / "script.py", text)
    _, err, code = both(folder, "script.py")
    assert code == expected
    assert "msprobe" not in err


def test_a_running_script_is_interrupted_as_in_plain_python(folder: Path) -> None:
    write(folder / "script.py", "import time\nprint('ready', flush=True)\ntime.sleep(60)\n")
    results = []
    for command in (["script.py"], ["-m", "msprobe", "run", "-c", "config.json", "script.py"]):
        process = start(folder, sys.executable, *command)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.5)  # until it sleeps
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        results.append((process.returncode, err.removesuffix(NO_TORCH)))
    assert results[0] == results[1]
    assert results[0][0] == -signal.SIGINT
    assert "KeyboardInterrupt" in results[0][1]


SPAWN = """
    import multiprocessing, sys
    def child(start):
        print(start, __name__, __file__, sys.argv, "msprobe" in sys.modules, flush=True)
    if __name__ == "__main__":
        for start in ("spawn", "fork"):
            process = multiprocessing.get_context(start).Process(target=child, args=(start,))
            process.start()
            process.join()
            print(process.exitcode, flush=True)
"""


def test_processes_that_the_script_starts_are_as_with_plain_python(folder: Path) -> None:
    write(
        folder / "script.py",
        SPAWN.replace('"msprobe" in sys.modules', "start == 'fork' or 'msprobe' not in sys.modules"),
    )
    out, _, code = both(folder, "script.py", "argument")
    assert code == 0
    assert next(line for line in out.splitlines() if line.startswith("spawn")).endswith(" True")


def test_the_safe_path_switch_is_respected(folder: Path) -> None:
    write(folder / "script.py", "import sys\nprint(sys.path)\n")
    assert both(folder, "script.py", PYTHONSAFEPATH="1")[2] == 0


BAD = {
    "no script": (["-c", "config.json", "none.py"], "error: cannot read the script none.py: No such file or directory"),
    "no config": (["-c", "none.json", "script.py"], "error: config file none.json: 1 problem"),
    "bad config": (["-c", "bad.json", "script.py"], 'did you mean "L1"?'),
    "bad class": (["-c", "config.json", "--step-on", "a b", "script.py"], 'not "a b"'),
    "config missing": (["script.py"], "Missing option '--config' / '-c'"),
    "target missing": (["-c", "config.json"], "Missing argument"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_before_the_script_starts(folder: Path, case: str) -> None:
    write(folder / "script.py", "print('started')\n")
    write(folder / "bad.json", '{"dump_path": "dump", "level": "l1"}')
    arguments, text = BAD[case]
    process = start(folder, sys.executable, "-m", "msprobe", "run", *arguments)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert text in err
    assert "Traceback" not in err


def test_the_installed_command_is_the_same(folder: Path) -> None:
    write(folder / "script.py", "import sys\nprint(sys.path[0], sys.argv)\n")
    command = Path(sys.executable).parent / "msprobe"
    process = start(folder, str(command), "run", "-c", "config.json", "script.py", "--help")
    out, _ = process.communicate(timeout=60)
    assert (out, process.returncode) == (f"{folder} ['script.py', '--help']\n", 0)


# -- torch is imported by the script, not before it

WATCHED = """
    import os, sys
    import torch_like_setting
    assert "torch" not in sys.modules and "numpy" not in sys.modules
    os.environ["OMP_NUM_THREADS"] = "1"
    os.chdir("elsewhere")
    import torch
    assert torch.get_num_threads() == 1
    assert torch.__spec__.loader is torch.__loader__
    assert type(torch.__loader__).__module__ == "_frozen_importlib_external", type(torch.__loader__)
    assert not [finder for finder in sys.meta_path if type(finder).__module__.startswith("msprobe")]
    def fail(x):
        return torch.mm(x, torch.ones(3, 3))
    class Model(torch.nn.Module):
        def forward(self, x):
            return fail(x)
    Model()(torch.ones(2, 2))
"""


def test_torch_is_imported_by_the_script_and_an_error_in_a_recorded_call_shows_no_frame_of_ours(folder: Path) -> None:
    write(folder / "script.py", WATCHED)
    write(folder / "torch_like_setting.py", "")
    (folder / "elsewhere").mkdir()
    process = start(folder, sys.executable, "-m", "msprobe", "run", "-c", "config.json", "script.py")
    out, err = process.communicate(timeout=120)
    assert (out, process.returncode) == ("", 1)
    assert err.endswith("RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x2 and 3x3)\n"), err
    assert err.startswith(f'Traceback (most recent call last):\n  File "{folder}/script.py", line ')
    assert "in fail\n" in err
    assert "msprobe" not in err.replace(str(folder), "")
    (dump,) = (folder / "dump").glob("step0/*/dump.json")  # not below the folder that the script went to
    assert "Torch.mm.0.forward#error" in json.loads(dump.read_text())["data"]
