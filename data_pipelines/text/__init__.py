"""Sources of text (files, TensorFlow Datasets, what is on the machine) to documents and sentences."""
