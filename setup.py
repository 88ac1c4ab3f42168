"""Build of the optional native CPU kernels; everything else is in pyproject.toml."""

from setuptools import setup

setup()
