"""Builds access control and quotas. Part of `lakesync.runtime.wiring`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakesync.ports import Quota
from lakesync.runtime import wiring

if TYPE_CHECKING:
    from lakesync.gateway.access import Access, AccessAdmin
    from lakesync.gateway.audit import Audit
    from lakesync.gateway.quota import Quotas
    from lakesync.ports import AccessStore, AuditStore, GatewayItems, QuotaStore
    from lakesync.runtime.settings import AdminSettings, BufferSettings, QuotaSettings
    from lakesync.runtime.settings_connectors import PollSettings


def access(settings: BufferSettings) -> Access:
    """Return the check that admits callers."""
    from lakesync.gateway.access import Access  # noqa: PLC0415

    return Access(store(settings), wall_clock=wiring.wall_clock, monotonic_ms=wiring.monotonic_ms)


def access_admin(settings: BufferSettings) -> AccessAdmin:
    """Return the service that shows and changes who may use a gateway."""
    from lakesync.gateway.access import AccessAdmin  # noqa: PLC0415

    return AccessAdmin(store(settings), wall_clock=wiring.wall_clock)


def store(settings: BufferSettings) -> AccessStore:
    """Return the users of clients and the revocations, in the buffer's table."""
    from lakesync.buffer.access import DynamoAccess  # noqa: PLC0415
    from lakesync.runtime.wiring_dynamo import dynamo  # noqa: PLC0415

    return DynamoAccess(settings.buffer_table, dynamo(settings))


def audit(settings: AdminSettings | PollSettings) -> Audit:
    """Return the service that records the changes of administrators, and shows them."""
    from lakesync.gateway.audit import Audit  # noqa: PLC0415

    token = wiring.Randomness().token
    return Audit(audit_store(settings), wall_clock=wiring.wall_clock, token=token)


def audit_store(settings: AdminSettings | PollSettings) -> AuditStore:
    """Return the audit records, in a table of their own."""
    from lakesync.buffer.audit import DynamoAudit  # noqa: PLC0415
    from lakesync.runtime.wiring_dynamo import dynamo  # noqa: PLC0415

    return DynamoAudit(settings.audit_table, dynamo(settings))


def items(settings: BufferSettings) -> GatewayItems:
    """Return all that is stored of a gateway in the buffer's table."""
    from lakesync.buffer.removal import DynamoItems  # noqa: PLC0415
    from lakesync.runtime.wiring_dynamo import dynamo  # noqa: PLC0415

    return DynamoItems(settings.buffer_table, dynamo(settings))


def quotas(settings: QuotaSettings) -> Quotas:
    """Return the check that keeps each gateway within its quota."""
    from lakesync.gateway.quota import Quotas  # noqa: PLC0415

    default = Quota(settings.quota_pushes, settings.quota_deltas, settings.quota_bytes)
    return Quotas(quota_store(settings), default, wall_clock=wiring.wall_clock)


def quota_store(settings: BufferSettings) -> QuotaStore:
    """Return the use and the quotas of gateways, in the buffer's table."""
    from lakesync.buffer.quota import DynamoQuotas  # noqa: PLC0415
    from lakesync.runtime.wiring_dynamo import dynamo  # noqa: PLC0415

    return DynamoQuotas(settings.buffer_table, dynamo(settings))
