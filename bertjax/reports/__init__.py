"""Pages of HTML on runs and evaluations."""
