"""BERT and its heads, losses and operations: pure functions of parameters and batches."""
