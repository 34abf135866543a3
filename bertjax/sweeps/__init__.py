"""Grids of runs, several trained in one program."""
