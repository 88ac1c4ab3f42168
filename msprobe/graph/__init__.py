"""torch.compile: probes in the compiled program, with the names of eager capture."""
