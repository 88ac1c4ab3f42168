"""msprobe: record what flows through a model and find where two runs part.

Importing this package imports no framework. Use :mod:`msprobe.pytorch` in a PyTorch script.
"""

__version__ = "0.1.0"
__all__ = ["__version__"]
