"""A model behind HTTP, whose requests that arrive together are answered in one batch."""
