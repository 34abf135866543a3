"""The error for invalid input of a user, in data_pipelines and bertjax."""


class InputError(ValueError):
    """A user's mistake: an invalid file, vocabulary, text, option or field.

    The message is one line, `field=value: problem. Fix.` or `path:line: problem. Fix.`. The command
    line prints it without a traceback and exits with status 2.
    """
