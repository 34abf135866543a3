"""The command line: one file a verb.

A verb's file has a docstring, whose first line says what the verb does, its place in the list of
verbs, `ORDER`, a command that runs, `EXAMPLE`, `add_arguments(parser)`, and `run(args)`, which does
the work and may return an exit status. The other files are what several verbs share.
What is slow to import, JAX above all, it imports in `run`, so that help and usage errors are quick.
"""
