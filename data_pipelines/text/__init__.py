"""Documents and sentences from files, TensorFlow Datasets and the built-in corpus."""
