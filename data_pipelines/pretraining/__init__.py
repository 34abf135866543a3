"""Token shards to pre-training batches: pairs, masks, packed sequences, streams."""
