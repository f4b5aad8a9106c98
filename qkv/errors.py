"""Errors that a user can cause and correct. The command line prints their message in one line and exits with their code, mostly 2."""

NO_MEMORY = ("can't allocate memory", "Cannot allocate memory", "not enough memory", "out of memory", "bad_alloc")
"""Parts of the messages of torch's allocators, and of the system where a file is mapped."""


class QkvError(Exception):
    """Invalid input: the message says what is wrong, what is allowed and what to do."""

    exit_code = 2
    """Exit code of a command that ends with this error."""

    def __str__(self) -> str:
        """Return one line: control characters, such as line ends in the names of a damaged file, are escaped."""
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in super().__str__())


class ConfigError(QkvError):
    """Invalid configuration: unknown key, wrong type, impossible combination."""


class FileError(QkvError):
    """Missing, damaged, unsafe or unexpected file."""


def explain(error: BaseException) -> str:
    """Return the message, in one line, of an error that a user can correct; an empty string for any other error."""
    if isinstance(error, OSError):  # a full disk, no permission, a name that no file can have
        return f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
    if isinstance(error, UnicodeError):
        reason = error.reason if isinstance(error, UnicodeDecodeError) else error
        return f"the input is not UTF-8 text ({reason}): convert it to UTF-8"
    if is_memory_error(error):
        return "not enough memory: use a smaller model, or smaller batches"
    return str(error) if isinstance(error, QkvError) else ""


def is_memory_error(error: BaseException) -> bool:
    """Whether an allocation has failed: in Python, on a CPU (a RuntimeError) or on a GPU (torch.OutOfMemoryError, which is one)."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(m in str(error) for m in NO_MEMORY)
    )
