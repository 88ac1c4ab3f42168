"""MindSpore PyNative mode and MSAdapter: capture of Cells and APIs."""
