"""Mutated files and generated command lines: only `InputError` or a result, in bounds."""
