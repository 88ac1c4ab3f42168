"""Native kernels of msprobe, each beside its reference implementation.

``cpu``
    One-pass statistics and checksums of tensors in host memory (C++17, module ``_native``, optional), and their numpy
    reference. Nothing in it imports a framework.
``triton``, ``npu``
    The same on accelerators.

Importing this package loads none of them.
"""
