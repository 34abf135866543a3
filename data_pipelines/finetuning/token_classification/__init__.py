"""Readers of tagged words: files of columns, tables, JSON lists and span annotations."""
