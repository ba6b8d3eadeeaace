"""The exception for a user's mistake."""


class UsageError(Exception):
    """One line: the flag or file, what was found, what would be right."""
