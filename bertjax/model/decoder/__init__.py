"""Decoders of target texts: cross-attention, and decoding token by token."""
