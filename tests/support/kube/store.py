"""Leases under optimistic concurrency, as etcd and the API server keep them."""

from __future__ import annotations

import copy
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tests.support.kube.rules import SPEC, RefusedError, check_types, check_values

if TYPE_CHECKING:
    from collections.abc import Callable

Lease = dict[str, Any]
Event = tuple[int, str, Lease]

_GROUP = "leases.coordination.k8s.io"


class LeaseStore:
    """The four writes and three reads, each atomic; every write moves one revision on."""

    def __init__(self, namespaces: tuple[str, ...]) -> None:
        self.namespaces = namespaces
        self.leases: dict[tuple[str, str], Lease] = {}
        self.revision = 100
        self.compacted = 0
        self.events: list[Event] = []
        self.changed: Callable[[], None] = lambda: None

    def get(self, namespace: str, name: str) -> Lease:
        """Return one, or refuse with 404."""
        try:
            return copy.deepcopy(self.leases[namespace, name])
        except KeyError:
            raise RefusedError(404, "NotFound", f'{_GROUP} "{name}" not found') from None

    def create(self, namespace: str, body: Any) -> Lease:
        """Store a new one."""
        check_types(body)
        metadata = body["metadata"]
        if metadata.get("resourceVersion"):
            raise RefusedError(500, "", "resourceVersion should not be set on objects to be created")
        if namespace not in self.namespaces:
            raise RefusedError(404, "NotFound", f'namespaces "{namespace}" not found')
        name = str(metadata.get("name") or "")
        check_values(name, body)
        if (namespace, name) in self.leases:
            raise RefusedError(409, "AlreadyExists", f'{_GROUP} "{name}" already exists')
        created = _now()
        return self._put(namespace, name, body, uid=str(uuid.uuid4()), created=created, kind="ADDED")

    def replace(self, namespace: str, name: str, body: Any) -> Lease:
        """Store over the version that the body names; one that is missing is created."""
        check_types(body)
        metadata = body["metadata"]
        if metadata.get("name") != name:
            raise RefusedError(400, "BadRequest", "the name of the object does not match the name on the URL")
        version, uid = str(metadata.get("resourceVersion") or ""), metadata.get("uid")
        if version and not version.isdigit():
            raise RefusedError(500, "", f"strconv.ParseUint: parsing {version!r}: invalid syntax")
        old = self.leases.get((namespace, name))
        if uid and uid != (old or {"metadata": {"uid": ""}})["metadata"]["uid"]:
            raise _conflict(name, f"Precondition failed: UID in precondition: {uid}")
        if old is None:
            body = {**body, "metadata": {k: v for k, v in metadata.items() if k != "resourceVersion"}}
            return self.create(namespace, body)
        if not version:
            message = (
                f'{_GROUP} "{name}" is invalid: metadata.resourceVersion: must be specified for an update'
            )
            raise RefusedError(422, "Invalid", message)
        if version != old["metadata"]["resourceVersion"]:
            raise _conflict(name, "the object has been modified")
        check_values(name, body)
        kept = old["metadata"]
        return self._put(
            namespace, name, body, uid=kept["uid"], created=kept["creationTimestamp"], kind="MODIFIED"
        )

    def delete(self, namespace: str, name: str, body: Any) -> Lease:
        """Remove one, if the preconditions in the body hold."""
        metadata = self.get(namespace, name)["metadata"]
        conditions = (body or {}).get("preconditions") or {}
        for key in ("uid", "resourceVersion"):
            if conditions.get(key) not in (None, metadata[key]):
                raise _conflict(name, f"the {key} in the precondition does not match")
        lease = self.leases.pop((namespace, name))
        self._happened("DELETED", lease)
        return {"kind": "Status", "status": "Success", "details": {"name": name, "uid": metadata["uid"]}}

    def select(self, namespace: str, labels: str = "", fields: str = "") -> list[Lease]:
        """Return those in a namespace that both selectors select, by name."""
        found = sorted((key, lease) for key, lease in self.leases.items() if key[0] == namespace)
        return [copy.deepcopy(lease) for _, lease in found if selected(lease, labels, fields)]

    def since(self, version: int) -> list[Event]:
        """Return what happened after a revision, or refuse with 410 when that is forgotten."""
        if version < self.compacted:
            raise RefusedError(410, "Expired", f"too old resource version: {version} ({self.compacted})")
        return [event for event in self.events if event[0] > version]

    def compact(self) -> None:
        """Forget what happened so far."""
        self.compacted = self.revision
        self.events.clear()

    def _put(self, namespace: str, name: str, body: Lease, *, uid: str, created: str, kind: str) -> Lease:
        metadata = {k: v for k, v in body["metadata"].items() if k != "managedFields"}
        metadata |= {"name": name, "namespace": namespace, "uid": uid, "creationTimestamp": created}
        spec = {
            key: value for key, value in (body.get("spec") or {}).items() if key in SPEC and value is not None
        }
        for key in ("acquireTime", "renewTime"):
            if key in spec:
                spec[key] = _utc(spec[key])
        lease = {"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": metadata, "spec": spec}
        old = self.leases.get((namespace, name))
        if old is not None:
            metadata["resourceVersion"] = old["metadata"]["resourceVersion"]
            if old == lease:
                return copy.deepcopy(lease)
        self.leases[namespace, name] = lease
        self._happened(kind, lease)
        return copy.deepcopy(lease)

    def _happened(self, kind: str, lease: Lease) -> None:
        self.revision += 1
        lease["metadata"]["resourceVersion"] = str(self.revision)
        self.events.append((self.revision, kind, copy.deepcopy(lease)))
        self.changed()


def selected(lease: Lease, labels: str, fields: str) -> bool:
    """Say whether a Lease has all labels (`key=value,…`) and the name (`metadata.name=…`)."""
    mine = lease["metadata"].get("labels") or {}
    wanted = [pair.split("=", 1) for pair in labels.split(",") if pair]
    name = fields.removeprefix("metadata.name=")
    return all(mine.get(key) == value for key, value in wanted) and name in ("", lease["metadata"]["name"])


def _conflict(name: str, why: str) -> RefusedError:
    return RefusedError(409, "Conflict", f'Operation cannot be fulfilled on {_GROUP} "{name}": {why}')


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _utc(text: str) -> str:
    moment = datetime.fromisoformat(text).astimezone(UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
