"""Question answering: layouts of data sets to questions, questions to windows."""
