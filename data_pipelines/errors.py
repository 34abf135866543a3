"""What both packages say to a user who gave something that cannot be used."""


class InputError(ValueError):
    """What the user gave cannot be used: a file, a vocabulary, a text or an option.

    The message is one sentence that names the thing, its value and the cure; the command line
    prints it as it stands and ends with exit status 2.
    """
