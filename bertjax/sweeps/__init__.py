"""Sweeps: many short runs, trained several at once, and what became of each."""
