"""Here kernels run as numpy programs on CPU tensors: Triton reads this variable when a kernel is decorated."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"
