"""Errors a user can cause. Each is shown as one line; anything else is a fault of the program."""


class UserError(Exception):
    """A wrong command or configuration: nothing was started. Exit code 2.

    `again`: whether a launcher that restarts what fails may try once more.
    """

    exit_code = 2
    again = False


class RunError(Exception):
    """A check that failed, bad data, or a run that cannot go on. Exit code 1."""

    exit_code = 1
    again = True
