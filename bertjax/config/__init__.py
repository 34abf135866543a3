"""Typed configuration, configuration files, durations."""
