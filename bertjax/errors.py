"""The errors of a failed command, and exit statuses."""

EXIT_RESTART = 75  # the same command may be run again (EX_TEMPFAIL of sysexits.h)
EXIT_DIVERGED = 3  # the loss is not finite


class CommandError(Exception):
    """A failure of a command by its machine or its run, printed as one line without a traceback.

    `InputError` is for a user's mistakes.

    Attributes:
      status: exit status of the command.
    """

    status = 1


class CorruptionError(CommandError):
    """A device computes wrong numbers."""


class DivergedError(CommandError):
    """The loss or the gradient is no longer a finite number."""

    status = EXIT_DIVERGED


class StoppedError(CommandError):
    """A stop signal arrived; the state was saved."""

    status = EXIT_RESTART
