"""HTML reports of runs, sweeps and corpora."""
