"""Model directories of Hugging Face, TF1 and sentence-transformers."""
