"""Examples of a task to rows and batches, and readers of data sets."""
