"""The errors a user can cause and mend. The command line prints their one line and exits with code 2."""


class QkvError(Exception):
    """Something the user gave is wrong; the message says what, and what to do."""

    def __str__(self) -> str:
        """One line, whatever names a damaged file brought into it: line ends and other control characters are escaped."""
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in super().__str__())


class ConfigError(QkvError):
    """A configuration that cannot be: unknown key, wrong type, impossible combination."""


class FileError(QkvError):
    """A file that is missing, broken, unsafe or of another kind than expected."""
