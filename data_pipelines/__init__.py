"""Data pipelines: sources, vocabularies, token shards, batches. Imports neither jax nor bertjax."""
