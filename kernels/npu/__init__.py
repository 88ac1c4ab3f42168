"""Kernels for Ascend NPUs. Nothing here is imported unless a tensor on such a device is measured."""
