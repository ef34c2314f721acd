"""Errors of declaring and running tasks.

GrelmicroError
└── TaskError
    ├── TaskDeclarationError   a task, its name or its schedule breaks a rule (also ValueError)
    └── TaskStateError         not possible now: the tasks run already, or are not open (also RuntimeError)
"""

from __future__ import annotations

from grelmicro.errors import GrelmicroError, SettingsValidationError


class TaskError(GrelmicroError):
    """Root of the errors of this package."""


class TaskDeclarationError(TaskError, SettingsValidationError):
    """A task cannot be declared like this; the message names the parameter and the rule."""


class TaskStateError(TaskError, RuntimeError):
    """This cannot be done while the tasks run, or while they do not."""
