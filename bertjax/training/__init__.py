"""Configuration, step, compiled programs, optimiser, checkpoints."""
