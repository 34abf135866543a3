"""Spans of a passage that are worth asking about, without a question."""
