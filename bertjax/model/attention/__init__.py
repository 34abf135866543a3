"""Attention within packed rows: one contract, and the ways that suit devices."""
