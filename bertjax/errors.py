"""The errors of a failed command, and exit statuses."""

from data_pipelines.errors import one_line

EXIT_RESTART = 75  # the same command may be run again (EX_TEMPFAIL of sysexits.h)
EXIT_DIVERGED = 3  # the loss is not finite


class CommandError(Exception):
    """A failure of a command by its machine or its run, printed as one line without a traceback.

    `InputError` is for a user's mistakes.

    Attributes:
      status: exit status of the command.
    """

    status = 1

    def __init__(self, message: object = "") -> None:
        super().__init__(one_line(str(message)))


class CorruptionError(CommandError):
    """A device computes wrong numbers."""


class DivergedError(CommandError):
    """A loss, a score or a parameter is not a finite number."""

    status = EXIT_DIVERGED


class LockLostError(CommandError):
    """Another run has taken the workdir."""


class StoppedError(CommandError):
    """A stop signal arrived; the state was saved."""

    status = EXIT_RESTART
