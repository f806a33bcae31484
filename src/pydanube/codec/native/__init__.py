"""The native protocol: `frames` has the frame format and the heads of the hot path, `requests` everything else."""
