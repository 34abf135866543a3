"""Pairs of a source and a target, and masked targets."""
