"""One table: its quoted name, the SQL that uses it, and its creation on first use."""

from __future__ import annotations

import re
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING

import asyncpg

from grelmicro.errors import ProviderError, SettingsValidationError

if TYPE_CHECKING:
    from grelmicro.providers._postgres.sending import Connection, Sending

_MAX_BYTES = 63
_PART = re.compile(r"\{(\w+)\}")
_CREATION_LOCK = 0x67726C6D
"""Advisory lock, held to the end of a transaction, by which processes that start together take turns."""


def _quoted(field: str, identifier: object) -> str:
    if not isinstance(identifier, str):
        raise SettingsValidationError(f"{field}: must be a string, not {type(identifier).__name__}")
    try:
        size = len(identifier.encode())
    except UnicodeEncodeError:
        raise SettingsValidationError(f"{field}: must encode as UTF-8 (it holds a lone surrogate)") from None
    if not 1 <= size <= _MAX_BYTES:
        raise SettingsValidationError(f"{field}: must have 1 to {_MAX_BYTES} bytes in UTF-8, not {size}")
    if "\0" in identifier:
        raise SettingsValidationError(f"{field}: must not contain a NUL character")
    return '"' + identifier.replace('"', '""') + '"'


@cache
def _template(name: str) -> str:
    text = (files("grelmicro.coordination.postgres") / "sql" / f"{name}.sql").read_text(encoding="utf-8")
    # The server logs and caches what it is sent; the description at the top is for readers of the file.
    return "\n".join(line for line in text.splitlines() if not line.startswith("--"))


class Table:
    """A table of locks, elections or schedules.

    Raises:
        SettingsValidationError: a name is no string of 1 to 63 bytes without NUL (also a ValueError).
    """

    def __init__(self, template: str, *, table_name: str, schema: str) -> None:
        self._schema = _quoted("schema", schema)
        self._name = f"{self._schema}.{_quoted('table_name', table_name)}"
        self._creation = self.sql(template)

    def sql(self, name: str, **parts: str) -> str:
        """Return a statement from the file of that name, on this table.

        In place of what stands in braces there comes what is given for it, else the file of that name.
        """

        def part(found: re.Match[str]) -> str:
            name = found[1]
            return (
                self._name if name == "table" else filled(parts[name] if name in parts else _template(name))
            )

        def filled(text: str) -> str:
            return _PART.sub(part, text)

        return filled(_template(name))

    def channel(self, purpose: str) -> str:
        """Return the channel for word about this table, which all processes know."""
        return f"grelmicro_{purpose}_{sha256(self._name.encode()).hexdigest()[:16]}"

    @property
    def schema_sql(self) -> str:
        """What creates the schema and the table unless they exist."""
        return f"CREATE SCHEMA IF NOT EXISTS {self._schema};\n{self._creation}\n"

    async def create(self, sending: Sending, connection: Connection, where: str) -> None:
        """Create the table, or what it lacks, and its schema, unless that exists by now.

        Raises:
            ProviderError: the user may not. The message holds the SQL that somebody else has to run.
            UndefinedColumnError: the table is none of ours.
        """
        take_turns = f"SELECT pg_advisory_xact_lock({_CREATION_LOCK});\n"
        try:
            try:
                await sending.execute(connection, take_turns + self._creation)
            except asyncpg.InvalidSchemaNameError:
                await sending.execute(connection, take_turns + self.schema_sql)
        except (asyncpg.UniqueViolationError, asyncpg.DuplicateTableError, asyncpg.DuplicateSchemaError):
            return  # somebody who does not take turns was quicker
        except (asyncpg.InsufficientPrivilegeError, asyncpg.ReadOnlySQLTransactionError) as error:
            raise ProviderError(
                f"the table {self._name} is missing or lacks something, and {where} did not let this user "
                f"create it ({error}). Have somebody who may run the following, and grant this user USAGE on "
                f"the schema and SELECT, INSERT, UPDATE and DELETE on the table:\n{self.schema_sql}"
            ) from error
