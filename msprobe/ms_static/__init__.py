"""MindSpore graph mode: generated kernel dump configurations, their output read back, taps in Cells."""
