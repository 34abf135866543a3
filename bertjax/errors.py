"""Errors that end a run, and exit statuses."""

EXIT_RESTART = 75  # the same command may be run again (EX_TEMPFAIL of sysexits.h)
EXIT_DIVERGED = 3  # the loss is not finite
CHILD_ENV = "BERTJAX_CHILD"  # environment variable of the child of `distributed.run_in_child`


class RunError(Exception):
    """A run ended early, for a reason that the message states in one sentence.

    Attributes:
      status: exit status of the command line.
    """

    status = 1
