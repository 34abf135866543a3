"""Decoding of target texts, token by token."""
