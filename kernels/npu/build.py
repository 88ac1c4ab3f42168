"""Build the C++ operators for Ascend NPUs: ``python -m msprobe.kernels.npu.build [--output FOLDER]``.

Needed are a C++17 compiler and the wheels of torch and torch_npu; CANN and a device are not. The file name carries both
versions, so a library is never loaded into a torch for which it was not built. setup.py runs this file as a script
when MSPROBE_BUILD_NPU=1 is set, before msprobe is installed; therefore it imports nothing of msprobe.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = ("float_status.cpp", "xor64.cpp")
FLAGS = ("-std=c++17", "-O2", "-g0", "-fPIC", "-shared", "-fvisibility=hidden")


class BuildError(RuntimeError):
    """The operators could not be built; the text says what is missing or what the compiler said."""


def library_name() -> str:
    """Return the file name of the library for the installed torch and torch_npu.

    Raises
    ------
    BuildError
        If one of them is not installed.
    """
    return f"libmsprobe_npu-torch{_version('torch')}-torch_npu{_version('torch_npu')}.so"


def build(folder: Path, compiler: str | None = None) -> Path:
    """Compile the operators into ``folder``.

    Parameters
    ----------
    folder
        Existing or new folder.
    compiler
        Name or path of a C++ compiler; the variable ``CXX``, then ``g++``, otherwise.

    Returns
    -------
    Path
        The library; an older one with the same name has been replaced.

    Raises
    ------
    BuildError
        If a wheel or the compiler is missing, or the compiler fails.
    """
    name = library_name()
    chosen = compiler or os.environ.get("CXX", "g++")
    if shutil.which(chosen) is None:
        raise BuildError(f"NPU operators: compiler {chosen!r} not found; install g++, or set CXX to a C++17 compiler")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        library = Path(scratch) / name
        command = [chosen, *_arguments(), "-o", str(library)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own command
        if done.returncode != 0:
            raise BuildError(f"NPU operators: {' '.join(command)}\nfailed with:\n{done.stderr[-4000:]}")
        # Replaced at once: a process that has the older library loaded keeps its file.
        return library.replace(folder / name)


def _arguments() -> list[str]:
    """Return what the compiler gets: flags, include and library folders of both wheels, sources."""
    # Importing torch would import torch_npu, and fail where CANN is missing.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    import torch  # noqa: PLC0415 - after the switch

    wheels = [_folder("torch"), _folder("torch_npu")]
    includes = [wheel / "include" for wheel in wheels]
    includes.append(wheels[0] / "include" / "torch" / "csrc" / "api" / "include")
    return [
        *FLAGS,
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *(f"-isystem{include}" for include in includes),
        *(str(HERE / source) for source in SOURCES),
        *(f"-L{wheel / 'lib'}" for wheel in wheels),
        # libtorch_npu brings in the runtime of CANN when it is loaded.
        "-ltorch_npu",
        "-ltorch_cpu",
        "-lc10",
        "-Wl,--allow-shlib-undefined",
    ]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise BuildError(
            f"NPU operators: {package} is not installed for {sys.executable}; install it, then build again"
        ) from None


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise BuildError(f"NPU operators: no files of {package} found for {sys.executable}; reinstall it")
    return Path(spec.origin).parent


def main() -> int:
    """Build from the command line; returns 2 after a failure, as every command of msprobe does."""
    parser = argparse.ArgumentParser(
        prog="python -m msprobe.kernels.npu.build",
        description="Build the C++ operators that msprobe uses on Ascend NPUs.",
        epilog="example: python -m msprobe.kernels.npu.build",
    )
    parser.add_argument("--output", type=Path, default=HERE, help="folder for the library (default: in the package)")
    parser.add_argument("--compiler", help="C++ compiler (default: CXX, then g++)")
    arguments = parser.parse_args()
    try:
        library = build(arguments.output, arguments.compiler)
    except BuildError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"built {library}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
