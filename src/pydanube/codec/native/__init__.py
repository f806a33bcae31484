"""The native protocol as bytes: `frames` for the envelope and the hot path, `requests` for everything else."""
