"""Text to tokens: words, tokenizers, and training of vocabularies."""
