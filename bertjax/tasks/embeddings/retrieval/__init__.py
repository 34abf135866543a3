"""Retrieval: exact search with embeddings, its metrics, and its evaluation."""
