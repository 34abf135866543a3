"""Generation of a target text from a source text."""
