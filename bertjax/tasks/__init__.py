"""What is learned, a file or a folder a task, and what every task is to be."""
