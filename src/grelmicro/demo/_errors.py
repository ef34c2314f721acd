"""Why a run ended without a verdict."""

from __future__ import annotations


class CannotRunError(Exception):
    """Something that the demo needs is missing or wrong; the message says what to do."""


class BrokenRunError(Exception):
    """The run did not come to its end: a worker ended by itself, or something took too long."""
