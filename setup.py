"""Build of the optional native CPU kernels; everything else is in pyproject.toml.

Without a working C++17 compiler the installation succeeds and the package measures with its slower framework path.
``MSPROBE_REQUIRE_NATIVE=1`` makes a failed build fatal (continuous integration, releases); ``MSPROBE_NO_NATIVE=1``
skips it (a wheel for every platform).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCES = Path("kernels/cpu")
FLAGS = [
    "-std=c++17",
    "-O3",
    "-g0",
    "-fno-math-errno",
    "-fno-trapping-math",
    # Every instruction set must round alike, so a product and a sum are never fused.
    "-ffp-contract=off",
    "-fvisibility=hidden",
    # GCC 12 warns about its own AVX-512 intrinsics (GCC bug 105593).
    "-Wno-uninitialized",
    "-Wno-maybe-uninitialized",
    "-pthread",
]


class OptionalBuildExt(build_ext):
    """`build_ext` that turns any failure into one warning, unless MSPROBE_REQUIRE_NATIVE=1."""

    def run(self) -> None:
        """Build the extensions, or say why there are none."""
        try:
            super().run()
        # Whatever a missing or broken compiler raises must not stop the installation.
        except Exception as error:  # noqa: BLE001
            self._give_up(error)

    def build_extension(self, ext: Extension) -> None:
        """Build one extension, or say why not."""
        try:
            super().build_extension(ext)
        except Exception as error:  # noqa: BLE001
            self._give_up(error)

    def copy_extensions_to_source(self) -> None:
        """Copy what was built beside the sources (``--inplace`` and editable installs)."""
        self.extensions = [ext for ext in self.extensions if Path(self.get_ext_fullpath_in_build(ext)).exists()]
        super().copy_extensions_to_source()

    def get_ext_fullpath_in_build(self, ext: Extension) -> str:
        """Return where `build_extension` leaves the module before it is copied."""
        return str(Path(self.build_lib) / self.get_ext_filename(self.get_ext_fullname(ext.name)))

    @staticmethod
    def _give_up(error: Exception) -> None:
        if os.environ.get("MSPROBE_REQUIRE_NATIVE") == "1":
            raise error
        sys.stderr.write(
            f"WARNING: msprobe's native CPU kernels were not built ({type(error).__name__}: {error}). "
            "msprobe works without them, more slowly. To get them, install g++ or clang++ (C++17) and reinstall.\n"
        )


def native_extension() -> Extension:
    """Return the extension module ``msprobe.kernels._native``."""
    return Extension(
        "msprobe.kernels._native",
        sources=sorted(str(path) for path in SOURCES.glob("*.cpp")),
        depends=sorted(str(path) for path in SOURCES.glob("*.h")),
        define_macros=[("Py_LIMITED_API", "0x030A0000")],
        py_limited_api=True,
        language="c++",
        extra_compile_args=FLAGS,
        extra_link_args=["-pthread", "-ldl"],
    )


if os.environ.get("MSPROBE_BUILD_NPU") == "1":  # needs torch_npu, so `pip install --no-build-isolation`
    subprocess.run([sys.executable, "kernels/npu/build.py"], check=True)

if os.environ.get("MSPROBE_NO_NATIVE") == "1":
    setup()
else:
    setup(
        ext_modules=[native_extension()],
        cmdclass={"build_ext": OptionalBuildExt},
        options={"bdist_wheel": {"py_limited_api": "cp310"}},
    )
