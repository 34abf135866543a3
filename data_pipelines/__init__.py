"""Text to batches: sources, vocabularies, token shards, tf.data pipeline. No jax, no bertjax."""
