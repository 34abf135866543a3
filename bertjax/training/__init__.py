"""The training loop, evaluation, metrics and the memory budget."""
