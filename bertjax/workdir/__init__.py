"""Contents of a run directory, its lock and its record."""
