"""Showing settings without their secrets."""

from __future__ import annotations

import re

_PASSWORD_IN_QUERY = re.compile(r"(?i)([?&;]\w*(?:password|passwd|pwd|secret|token)=)[^&#;]*")


def mask_url(url: str) -> str:
    """Return `url` with its password, in the user part or the query, replaced by `***`.

    The password may itself hold `@` or `:`; everything after the first colon of the user part is masked.
    """
    masked = _PASSWORD_IN_QUERY.sub(r"\1***", url)
    scheme, separator, rest = masked.partition("://")
    if not separator:
        scheme, rest = "", masked
    # A password may hold an unescaped "/" or "?", so it is the last "@" that ends the user part.
    user_part, at, tail = rest.rpartition("@")
    if not at:
        return masked
    user, colon, _ = user_part.partition(":")
    return f"{scheme}{separator}{user}{colon}{'***' if colon else ''}@{tail}"
