"""Values -> records: the only part of the program that reads the memory of tensors.

Importing this package imports no framework; `msprobe.measure.encode` needs PyTorch.
"""

from msprobe.measure.backends import backend
from msprobe.measure.records import Statistics
from msprobe.measure.summary import statistics

__all__ = ["Statistics", "backend", "statistics"]
