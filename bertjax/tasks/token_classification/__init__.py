"""Tags of words, such as named entities."""
