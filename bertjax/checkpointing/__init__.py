"""Orbax checkpoints with digests, retention and best-by-metric."""
