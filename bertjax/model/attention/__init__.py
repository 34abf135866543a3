"""Attention implementations, one file per backend."""
