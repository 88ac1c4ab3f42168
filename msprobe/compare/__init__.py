"""Two dumps, aligned record by record: metrics, verdicts, the first divergence."""
