"""Names and tokens that tell a backend's careful mappings from its careless ones."""

from __future__ import annotations

import secrets

MAX_LENGTH = 255

_LOOKALIKES = (
    ("a_b", "a-b", "a.b", "A-B", "A_B", "a:b", "a/b", "a b", "ab"),
    ("A/B:c", "A/B/c", "A:B:c", "a/b:c"),
    ("{x}", "x", "{{x}}", "{x}y", "{"),
    ("%", "%%", "%s", "%25", "50%"),
    ("'", '"', "`", "''", "\\", "\\'"),
    ("x'; DROP TABLE locks; --", "x' OR '1'='1", "$1", ":name", "?"),
    ("line\nbreak", "line\r\nbreak", "line break", "tab\tbed"),
    (" padded", "padded", "padded ", "padded  "),
    ("é", "e\u0301", "e", "É"),
    ("🔒", "🔓", "🔒🔒", "👩‍👩‍👧"),
    ("*", "[a]", "a*", "a?", "#1", "@", "~", ".", ".."),
    ("1", "01", "1.0", "1e0", "true", "null", "None"),
    ("lock:x", "tasklock:x", "election:x", "schedule:x", "fence:x"),
)


def hard_names(prefix: str) -> list[str]:
    """Return names, all different, that a lossy or careless mapping would confuse or refuse."""
    names = [f"{prefix}{part}" for group in _LOOKALIKES for part in group]
    names += [f"{part}{prefix}" for part in ("{", "}", "'", "%", " ", "-", ".", "/", "🔒")]
    filler = MAX_LENGTH - len(prefix) - 1
    names += [f"{prefix}{'x' * filler}{last}" for last in "ab"]
    names += [f"{prefix}{'🔒' * filler}{last}" for last in "ab"]
    return [one_character(), *names]


def one_character() -> str:
    """Return a name of one character, one out of so many that sessions sharing a server hardly meet."""
    return chr(0x4E00 + secrets.randbelow(20_000))


HARD_TOKENS = (
    *("a-1", "a-10", "a-", "A-1", "a-1 ", " a-1", "a_1", "a-1\n"),
    *("1", "01", "1.0", "nil", "None", "true", "{}", "[]", "null"),
    *("%s", "'", '"', "\\", "x'; DROP TABLE locks; --", "$1", "a:b", "a|b", "a,b"),
    *("é", "e\u0301", "🔑", "x" * 500),
)
"""Tokens, all different, of which no two may pass for each other."""
