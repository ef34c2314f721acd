"""Tables made from the code when the pages are built.

A line `<!-- settings: module:Class PREFIX_ -->` becomes a table with one row for each field of a
configuration: its name and variable, its type and bounds, its default, and its docstring. `<!-- waiting -->`
becomes a table of which backends wake those who wait.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import types
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin
from uuid import UUID

from annotated_types import Ge, Gt, Le, Lt
from pydantic import SecretStr

from grelmicro.types import MAX_SECONDS

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

_MARKER = re.compile(r"^<!-- settings: (\S+):(\S+) (\S+) -->$", re.MULTILINE)

_WAITING = "<!-- waiting -->"

_VENDORS = {"Redis": "Redis, Valkey", "Postgres": "PostgreSQL"}
_TYPES = {
    bool: "true or false",
    float: "number",
    int: "whole number",
    str: "string",
    SecretStr: "string, never shown",
    Path: "path",
    UUID: "UUID",
}
_BOUNDS = {Gt: ("gt", "above"), Ge: ("ge", "at least"), Lt: ("lt", "below"), Le: ("le", "at most")}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the tables in their places."""
    if _WAITING in markdown:
        markdown = markdown.replace(_WAITING, waiting())
    return _MARKER.sub(lambda match: table(getattr(import_module(match[1]), match[2]), match[3]), markdown)


def waiting() -> str:
    """Return the Markdown table of how callers wait, by backend."""
    lines = ["| Backend | Whoever waits for a lock | Whoever waits to lead |", "| --- | --- | --- |"]
    for vendor in ("Redis", "Postgres", "Kubernetes", "Memory"):
        module = import_module(f"grelmicro.coordination.{vendor.lower()}")
        kinds = (("LockAdapter", "hand_over"), ("LeaderElectionAdapter", "on_vacancy"))
        woken = [hasattr(getattr(module, f"{vendor}{kind}"), method) for kind, method in kinds]
        cells = [_VENDORS.get(vendor, vendor), *("is woken" if one else "polls" for one in woken)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def table(config: type[BaseModel], prefix: str) -> str:
    """Return the Markdown table of a configuration."""
    meanings = docstrings(config)
    lines = ["| Setting, variable | Type | Default | Meaning |", "| --- | --- | --- | --- |"]
    for name, field in config.model_fields.items():
        cells = (
            f"`{name}`<br>`{prefix}{name.upper()}`",
            type_of(field),
            default_of(field),
            meanings.get(name, ""),
        )
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


def docstrings(config: type[BaseModel]) -> dict[str, str]:
    """Return the docstring under each field, inherited ones too."""
    found: dict[str, str] = {}
    for owner in reversed(config.__mro__):
        if not owner.__module__.startswith("grelmicro"):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(tree, ast.ClassDef)  # noqa: S101 - what else is the source of a class
        for field, text in zip(tree.body, tree.body[1:], strict=False):
            match field, text:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(words))),
                ):
                    found[name] = " ".join(words.split())
                case _:
                    continue
    return found


def type_of(field: FieldInfo) -> str:
    """Return the type of a field and its bounds, in words."""
    bounds = dict[str, str]()
    words = list(dict.fromkeys(_words(field.annotation, bounds)))
    _take_bounds(field.metadata, bounds)
    if "ge" in bounds and bounds.get("gt") == "above 0":
        del bounds["gt"]
    return ", ".join([" or ".join(words), *bounds.values()])


def default_of(field: FieldInfo) -> str:
    """Return the default of a field."""
    default = field.default
    if default is None:
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _words(annotation: Any, bounds: dict[str, str]) -> list[str]:
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *metadata = get_args(annotation)
        _take_bounds(metadata, bounds)
        return _words(inner, bounds)
    if origin in (Union, types.UnionType):
        parts = [part for part in get_args(annotation) if part is not types.NoneType]
        return [word for part in parts for word in _words(part, bounds)]
    return [_TYPES[annotation]]


def _take_bounds(metadata: list[Any], bounds: dict[str, str]) -> None:
    for item in metadata:
        for one in getattr(item, "metadata", [item]):  # pydantic's Field() holds several
            if type(one) in _BOUNDS:
                key, word = _BOUNDS[type(one)]
                value = getattr(one, key)
                if value != MAX_SECONDS:
                    bounds[key] = f"{word} {value:g}"
