"""Tuples of texts for training embeddings, and batches in which no text occurs twice."""
