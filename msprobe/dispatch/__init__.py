"""Capture of eager PyTorch: APIs, modules and their gradients."""
