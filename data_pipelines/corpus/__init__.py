"""Documents to token shards, on this machine or by Apache Beam."""
