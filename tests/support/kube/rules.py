"""What an API server accepts as a Lease."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_KEY = re.compile(rf"({_LABEL}(\.{_LABEL})*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")
_ANNOTATIONS = 256 * 1024
_STRINGS = ("holderIdentity",)
_INTEGERS = ("leaseDurationSeconds", "leaseTransitions")
_TIMES = ("acquireTime", "renewTime")
SPEC = (*_STRINGS, *_INTEGERS, *_TIMES)


@dataclass
class RefusedError(Exception):
    """The answer to a request that breaks a rule."""

    code: int
    reason: str
    message: str


def check_types(body: Any) -> None:
    """Refuse what cannot be decoded."""
    if not isinstance(body, dict) or not isinstance(body.get("metadata"), dict):
        raise RefusedError(400, "BadRequest", "cannot be handled as a Lease")
    spec = body.get("spec") or {}
    for key in _STRINGS:
        _expect(key, spec.get(key) is None or isinstance(spec[key], str))
    for key in _INTEGERS:
        value = spec.get(key)
        _expect(key, value is None or (type(value) is int and -(2**31) <= value < 2**31))
    for key in _TIMES:
        value = spec.get(key)
        _expect(key, value is None or (isinstance(value, str) and bool(_MICRO_TIME.fullmatch(value))))


def check_values(name: str, body: dict[str, Any]) -> None:
    """Refuse what can be decoded but must not be."""
    metadata, spec = body["metadata"], body.get("spec") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    length = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    rules = {
        "metadata.name": len(name) <= 253 and bool(_SUBDOMAIN.fullmatch(name)),
        "metadata.labels": all(
            _KEY.fullmatch(key) and len(value) <= 63 and _VALUE.fullmatch(value)
            for key, value in labels.items()
        ),
        "metadata.annotations": length <= _ANNOTATIONS
        and all(map(_KEY.fullmatch, map(str.lower, annotations))),
        "spec.leaseDurationSeconds": spec.get("leaseDurationSeconds") is None
        or spec["leaseDurationSeconds"] > 0,
        "spec.leaseTransitions": spec.get("leaseTransitions") is None or spec["leaseTransitions"] >= 0,
    }
    broken = [field for field, kept in rules.items() if not kept]
    if broken:
        raise RefusedError(
            422, "Invalid", f'Lease.coordination.k8s.io "{name}" is invalid: {", ".join(broken)}'
        )


def _expect(key: str, condition: bool) -> None:
    if not condition:
        raise RefusedError(400, "BadRequest", f"Lease cannot be handled as a Lease: v1.LeaseSpec.{key}")
