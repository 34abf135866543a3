"""Tasks, a file or a folder each, and the contract they implement."""
