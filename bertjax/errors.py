"""The error of a failed command, and exit statuses."""

EXIT_RESTART = 75  # the same command may be run again (EX_TEMPFAIL of sysexits.h)
EXIT_DIVERGED = 3  # the loss is not finite


class RunError(Exception):
    """A run ended early, for a reason that the message states in one sentence.

    Attributes:
      status: exit status of the command line.
    """

    status = 1
