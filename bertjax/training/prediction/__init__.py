"""Computation of batches of any shape, for predictors and for evaluations that generate texts."""
