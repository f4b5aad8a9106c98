"""Errors that a user can cause and correct. The command line prints their message in one line and exits with code 2."""


class QkvError(Exception):
    """Invalid input: the message says what is wrong, what is allowed and what to do."""

    def __str__(self) -> str:
        """Return one line: control characters, such as line ends in the names of a damaged file, are escaped."""
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in super().__str__())


class ConfigError(QkvError):
    """Invalid configuration: unknown key, wrong type, impossible combination."""


class FileError(QkvError):
    """Missing, damaged, unsafe or unexpected file."""
