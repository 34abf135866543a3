"""Models as others write them down: directories of Hugging Face and of the original code."""
