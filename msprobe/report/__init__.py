"""Dumps and comparisons as pages, and single files looked into."""
