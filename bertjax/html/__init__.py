"""HTML pages and charts that every report uses."""
