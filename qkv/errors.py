"""The errors a user can cause and mend. The command line prints their one line and exits with code 2."""


class QkvError(Exception):
    """Something the user gave is wrong; the message says what, and what to do."""


class ConfigError(QkvError):
    """A configuration that cannot be: unknown key, wrong type, impossible combination."""


class FileError(QkvError):
    """A file that is missing, broken, unsafe or of another kind than expected."""
