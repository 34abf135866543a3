"""Text to pieces: words, tokenizers, and the training of vocabularies."""
