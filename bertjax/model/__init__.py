"""BERT encoder, heads, losses and FLOPs as pure functions."""
