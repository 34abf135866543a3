"""Command line: one file per subcommand."""
