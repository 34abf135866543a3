"""The error for invalid input of a user, in data_pipelines and bertjax."""

MAX_MESSAGE_CHARS = 500
_KEPT_END = 160  # characters, so that the fix at the end of a long message remains


class InputError(ValueError):
    """A user's mistake: an invalid file, vocabulary, text, option or field.

    The message is one line, `field=value: problem. Fix.` or `path:line: problem. Fix.`, of at most
    500 characters. The command line prints it without a traceback and exits with status 2.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(one_line(str(message)))


def one_line(message: str) -> str:
    """Return a message as one line of at most 500 characters, its middle left out.

    Control characters, which may come from a file and command a terminal, are escaped.
    """
    if len(message) > MAX_MESSAGE_CHARS:
        start = MAX_MESSAGE_CHARS - _KEPT_END - len(" ... ")
        message = f"{message[:start]} ... {message[-_KEPT_END:]}"
    if message.isprintable():
        return message
    spaced = " ".join(message.split())
    escaped = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in spaced)
    return escaped if len(escaped) <= MAX_MESSAGE_CHARS else one_line(escaped)
