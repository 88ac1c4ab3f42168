"""Build the fake CANN with gcc and load it, so that the torch_npu wheel can be imported without CANN."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

SOURCES = Path(__file__).parent / "fake_cann"
#: Libraries that torch_npu links; the runtime first, because the others resolve nothing themselves.
RUNTIME = "libascendcl.so"
COMPANIONS = ("libacl_op_compiler.so", "libge_runner.so", "libgraph.so", "libhccl.so", "libacl_tdt_channel.so")
_FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared")
#: Names of CANN; torch_npu also leaves names of libc undefined, which must not be replaced.
_CANN = re.compile(r"(acl|rt[A-Z]|Msprof|Hccl|_ZNK?2ge|_ZNK?3atb)")
_DECLARED = re.compile(r"ACL_FUNC_VISIBILITY[^;{]*?\b(acl\w+)\s*\(")


def wheel_folder() -> Path:
    """Folder of the installed torch_npu, found without importing it."""
    spec = importlib.util.find_spec("torch_npu")
    assert spec is not None, "torch_npu is not installed: pip install -r requirements/npu.txt in a venv of its own"
    assert spec.origin is not None
    return Path(spec.origin).parent


def build(folder: Path) -> Path:
    """Compile the fake into ``folder``; returns the path of its runtime library."""
    wheel = wheel_folder()
    stubs = folder / "stubs.c"
    stubs.write_text(stub_source(missing_names(wheel) - defined_names(SOURCES.glob("*.c"))), encoding="utf-8")
    runtime = folder / RUNTIME
    sources = [*sorted(SOURCES.glob("*.c")), stubs]
    _gcc(*_FLAGS, "-isystem", wheel / "include", *sources, f"-Wl,-soname,{RUNTIME}", "-o", runtime)
    empty = folder / "empty.c"
    empty.write_text("typedef int not_empty;\n", encoding="utf-8")
    for name in COMPANIONS:  # dlsym() in one of them also finds what it is linked to
        _gcc(*_FLAGS, empty, "-Wl,--no-as-needed", runtime, f"-Wl,-soname,{name}", "-o", folder / name)
    return runtime


def load(folder: Path) -> ctypes.CDLL:
    """Load the libraries before torch_npu asks for them by name; returns the runtime."""
    runtime = ctypes.CDLL(str(folder / RUNTIME), mode=ctypes.RTLD_GLOBAL)
    for name in COMPANIONS:
        ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
    runtime.fake_cann_raise_overflow.argtypes = [ctypes.c_uint64]
    runtime.fake_cann_raise_overflow.restype = None
    runtime.fake_cann_calls.argtypes = [ctypes.c_int, ctypes.c_int64]
    runtime.fake_cann_calls.restype = ctypes.c_int64
    runtime.fake_cann_dump_events.restype = ctypes.c_char_p
    return runtime


def missing_names(wheel: Path) -> set[str]:
    """What torch_npu needs from CANN: names its headers declare (looked up by dlsym), names its libraries import."""
    headers = (wheel / "include" / "acl").glob("*.h")
    declared = {name for file in headers for name in _DECLARED.findall(file.read_text(errors="ignore"))}
    libraries = [*(wheel / "lib").glob("*.so"), *wheel.glob("_C*.so")]
    torch_folder = wheel.parent / "torch"
    present = [*libraries, *(torch_folder / "lib").glob("*.so*"), *(wheel.parent / "torch_npu.libs").glob("*.so*")]
    plain = _symbols("--undefined-only", libraries) - _symbols("--defined-only", present)
    return declared | {name for name in plain if _CANN.match(name)}


def defined_names(sources: Iterable[Path]) -> set[str]:
    """Functions that the C sources define or use."""
    return {name for file in sources for name in re.findall(r"\b(acl\w+)\(", file.read_text(encoding="utf-8"))}


def stub_source(names: Iterable[str]) -> str:
    """C source in which every name is a function that returns 0, which is ACL_SUCCESS or a null pointer."""
    stubs = (
        f'long stub_{index}(void) __asm__("{name}");\nlong stub_{index}(void) {{ return 0; }}\n'
        for index, name in enumerate(sorted(names))
    )
    return "".join(stubs)


def _symbols(kind: str, libraries: Iterable[Path]) -> set[str]:
    found: set[str] = set()
    for library in libraries:
        listing = subprocess.run(["nm", "-D", kind, library], capture_output=True, text=True, check=True).stdout
        found.update(line.split()[-1].partition("@")[0] for line in listing.splitlines() if line.strip())
    return found


def _gcc(*arguments: str | Path) -> None:
    done = subprocess.run(["gcc", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"gcc could not build the fake CANN:\n{done.stderr[-4000:]}"
