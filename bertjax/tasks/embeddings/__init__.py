"""Embeddings of texts: those of any encoder, and the task that trains an encoder for them."""
