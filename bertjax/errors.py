"""How a process ends that did not do what it was started for."""

EXIT_RESTART = 75  # exit status that asks for the same command again (EX_TEMPFAIL of sysexits.h)
EXIT_DIVERGED = 3  # exit status of a run whose loss is no number any more
CHILD_ENV = "BERTJAX_CHILD"  # variable in the environment of what `hosts.supervise` starts


class RunError(Exception):
    """A run ended before its end, for a reason that the message gives in one sentence.

    Attributes:
      status: the exit status of the command line.
    """

    status = 1
