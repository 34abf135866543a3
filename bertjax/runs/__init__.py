"""What a command does: training, evaluation, prediction, conversion; workdirs and metrics."""
