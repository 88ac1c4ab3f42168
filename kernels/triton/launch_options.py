"""How every kernel of this package is built."""

from __future__ import annotations

from typing import Any, Final

import torch

#: No product is fused with a sum unless the source says so, whatever a release of triton prefers. On NVIDIA devices
#: 128 registers let four programs share a multiprocessor; without the bound the compiler takes about 190 and fits two.
OPTIONS: Final[dict[str, Any]] = {
    "num_warps": 4,
    "enable_fp_fusion": False,
    **({} if torch.version.hip else {"maxnreg": 128}),
}
