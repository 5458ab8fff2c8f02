"""Errors a user can cause. Each is shown as one line; anything else is a fault of the program."""


class UserError(Exception):
    """A wrong command or configuration: nothing was started. Exit code 2."""

    exit_code = 2


class RunError(Exception):
    """A check that failed, bad data, or a run that cannot go on. Exit code 1."""

    exit_code = 1
