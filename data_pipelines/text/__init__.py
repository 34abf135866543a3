"""Sources of text (files, TensorFlow Datasets, this machine) to documents and sentences."""
