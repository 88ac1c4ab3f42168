"""Triton kernels for CUDA and ROCm devices: statistics, checksums and a NaN/Inf probe that never wait for the device.

``availability``
    Whether the kernels can run here, and why not. Imports triton only when asked.
``device_statistics``
    The interface for `msprobe.measure`: launch now, read all results with one copy per flush.
``tensor_statistics``, ``table_statistics``, ``xor64``, ``hash64``, ``crc32``, ``nonfinite``
    One kernel per file, its launcher, and its reference in plain torch or Python.

Importing this package loads nothing; importing any module but `availability` needs triton.
"""
