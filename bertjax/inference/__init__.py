"""Load a model; predict, embed, convert and export."""
