"""Attention implementations, one file per backend; `dispatch` states their contract."""
