"""Ahead-of-time compilation for absent devices, and its report."""
