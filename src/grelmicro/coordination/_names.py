"""One rule for the names of locks, elections and schedules on every backend."""

from __future__ import annotations

from grelmicro.errors import SettingsValidationError

MAX_NAME_LENGTH = 255

_TASKLOCK = "tasklock:"
_LOCK = "lock:"


def check_name(name: object) -> str:
    """Return `name`, or raise if no backend may be asked for it.

    Raises:
        SettingsValidationError: it is no string of 1 to 255 characters, encodes not as UTF-8, or holds NUL.
    """
    if not isinstance(name, str):
        problem = f"must be a string, not {type(name).__name__}"
    elif not 1 <= len(name) <= MAX_NAME_LENGTH:
        problem = f"must have 1 to {MAX_NAME_LENGTH} characters, not {len(name)}"
    elif "\0" in name:
        problem = "must not contain a NUL character"
    elif not _encodes(name):
        problem = "must encode as UTF-8 (it holds a lone surrogate)"
    else:
        return name
    msg = f"name: {problem}"
    raise SettingsValidationError(msg)


def lock_key(name: str) -> str:
    """Return the name under which a backend keeps a `Lock`: its own, unless it reads like another kind's."""
    return f"{_LOCK}{name}" if name.startswith((_TASKLOCK, _LOCK)) else name


def tasklock_key(name: str) -> str:
    """Return the name under which a backend keeps a `TaskLock`; no `Lock` has it."""
    return f"{_TASKLOCK}{name}"


def _encodes(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
