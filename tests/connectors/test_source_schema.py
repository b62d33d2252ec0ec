"""Changes of a source's schema are noticed once, each with how severe it is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.buffer.admin_stores import ItemAudit
from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.buffer.memory_items import MemoryItemStore
from lakesync.connectors import SourceColumn, SourceTable
from lakesync.connectors.polls import CHANGES_KEPT_MAX, LOOK_MS, NOTE, SEVERE, WARNING, SourceSchema
from lakesync.connectors.registry import Definition
from lakesync.connectors.state import PollState, state_from
from lakesync.declare.flows import read_connector
from lakesync.errors import AdapterUnreachable
from lakesync.gateway.admin_changes import Audit
from lakesync.ports import AuditQuery
from lakesync.result import Err, Ok
from lakesync.runtime.polls import SchemaReports
from tests.support.gateways import GivenTime, pusher
from tests.support.polling import PollingByHand
from tests.support.sources import SqlSource, use_memory_source
from tests.support.vendors.jira import FIELDS, JiraServer
from tests.support.vendors.salesforce import SalesforceServer

if TYPE_CHECKING:
    from lakesync.connectors import Connector, Storage

NOW_MS = 1_800_000_000_000


class Looks:
    """Looks at a source, each time a quarter of an hour later."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.state = PollState()
        self.now_ms = NOW_MS

    def __call__(self, connector: Connector, *, keeps: bool = True) -> list[tuple[str, ...]]:
        """Return the table, the column, the severity and the words of each change."""
        self.now_ms += LOOK_MS
        schema = SourceSchema(self.storage, Definition("x"))
        changes = schema.look(connector, self.state, self.now_ms)
        if keeps:
            schema.keep()
        self.state = state_from(self.state.to_json())
        return [(one.table, one.column, one.severity, one.change) for one in changes]


@pytest.mark.emulator
@pytest.mark.law("N20")
@pytest.mark.parametrize("way", ["time", "difference", "changes"])
@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_schema_changes_of_a_database_are_reported_by_every_read_mode(
    kind: str, way: str, request: pytest.FixtureRequest
) -> None:
    source = SqlSource(
        request.getfixturevalue(kind), kind, by_time=way == "time", changes=way == "changes"
    )
    table, looks = source.table, Looks(source.storage)
    modify = "ALTER COLUMN value TYPE" if kind == "postgres" else "MODIFY COLUMN value"
    text = "character varying(40)" if kind == "postgres" else "varchar(40)"
    integer = "integer" if kind == "postgres" else "int(11) (integer)"
    assert looks(source.connector()) == []
    source.run(f"ALTER TABLE {table} ADD price numeric(10,2)")
    [(_, column, severity, words)] = looks(source.connector())
    assert (column, severity, "decimal(10,2)" in words) == ("price", NOTE, True)
    source.run(f"ALTER TABLE {table} {modify} {text}")
    assert looks(source.connector()) == [
        (table, "value", WARNING, f"was text (string), and is {text} (string)")
    ]
    using = " USING NULL::int" if kind == "postgres" else ""
    source.run(f"ALTER TABLE {table} {modify} int{using}")
    assert looks(source.connector()) == [
        (table, "value", SEVERE, f"was {text} (string), and is {integer}")
    ]
    source.run(f"ALTER TABLE {table} DROP COLUMN price")
    assert looks(source.connector()) == [(table, "price", SEVERE, "is gone; its last values stay")]
    assert looks(source.connector()) == []
    source.run(f"DROP TABLE {table}")
    assert looks(source.connector()) == [
        (table, "", SEVERE, "the table is gone, or may no longer be read")
    ]
    assert len(looks.state.schema_changes) == 5
    source.close()


@pytest.mark.law("N20")
def test_schema_changes_of_salesforce_and_jira_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with SalesforceServer() as org:
        looks = Looks(org.storage)
        assert looks(org.connector()) == []
        fields = dict(org.objects["Account"].fields)
        org.objects["Account"].fields = {**fields, "Later__c": "date", "External__c": "int"}
        assert looks(org.connector()) == [
            ("Account", "External__c", SEVERE, "was string, and is integer"),
            ("Account", "Later__c", NOTE, "is new: date"),
        ]
    with JiraServer() as site:
        looks = Looks(site.storage)
        monkeypatch.setattr("tests.support.vendors.jira.FIELDS", FIELDS[:-1])
        assert looks(site.connector(customFields=["*"])) == []
        monkeypatch.undo()
        assert looks(site.connector(customFields=["*"])) == [
            ("issues", "time_to_resolution", NOTE, "is new: json")
        ]


class Telling:
    """A source that tells its columns."""

    def __init__(self) -> None:
        self.table = SourceTable("items", (SourceColumn("id", "integer", False),), ("id",))
        self.asked = 0
        self.fails = False

    def columns(self) -> Any:
        """Return them."""
        self.asked += 1
        return Err(AdapterUnreachable("away")) if self.fails else Ok((self.table,))


class PolledWorld:
    """A connector that is polled."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.time = GivenTime(NOW_MS)
        self.source, self.telling = use_memory_source(patch), Telling()
        patch.setattr(self.source, "columns", self.telling.columns, raising=False)
        self.by_hand = PollingByHand(
            pusher(MemoryBuffer(), time_=self.time).push, self.time.wall_clock
        )
        body = {"type": "memory", "name": "shop", "configuration": {"token": "t"}}
        self.by_hand.admin.register("g", read_connector(body))

    def poll(self, later_ms: int = LOOK_MS) -> int:
        """Poll, and return how many changes were noticed."""
        self.time.sleep_ms(later_ms)
        step = self.by_hand.polls.poll("g", "shop", 0, lambda: True)
        assert step.status == "done"
        return step.schema_changes

    def listed(self) -> list[tuple[str, str]]:
        """Return the severities and words that administrators see."""
        shown = self.by_hand.admin.one("g", "shop").get("schemaChanges", [])
        return [(each["severity"], each["change"]) for each in shown]

    def alter(self, *columns: SourceColumn, key: tuple[str, ...] = ("id",)) -> None:
        """Give the table other columns."""
        self.telling.table = SourceTable("items", columns, key)


@pytest.mark.law("N20")
def test_schema_change_is_listed_once_until_a_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    world = PolledWorld(monkeypatch)
    assert world.poll() == 0
    ids = SourceColumn("id", "integer", False, "bigint")
    world.alter(ids, SourceColumn("n", "null"))
    assert world.poll() == 2
    world.alter(ids._replace(nullable=True), SourceColumn("n", "string"), key=("id", "n"))
    assert world.poll(1_000) == 0, "the source was asked a moment ago"
    assert world.poll() == 3
    assert world.poll() == 0
    expected = [
        (WARNING, "was integer, and is bigint (integer)"), (NOTE, "is new: null"),
        (SEVERE, "its key was id, and is id, n"), (NOTE, "may be null now"),
        (NOTE, "was null, and is string"),
    ]  # fmt: skip
    assert world.listed() == expected
    world.by_hand.admin.reset("g", "shop")
    assert (world.poll(), world.listed()) == (0, [])


@pytest.mark.law("N20")
def test_changed_settings_and_unreachable_sources_report_no_schema_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = PolledWorld(monkeypatch)
    world.poll()
    world.by_hand.admin.configure("g", "shop", {"table": "others"})
    world.alter(SourceColumn("other", "string"))
    assert world.poll() == 0
    world.telling.fails = True
    world.alter(SourceColumn("third", "string"))
    assert world.poll() == 0
    world.telling.fails = False
    assert world.poll() == 2
    for number in range(CHANGES_KEPT_MAX + 5):
        world.alter(SourceColumn("third", "string"), SourceColumn(f"c{number}", "string"))
        world.poll()
    assert len(world.listed()) == CHANGES_KEPT_MAX


@pytest.mark.law("N20")
def test_schema_change_is_recorded_once_after_a_kill_before_saving() -> None:
    with SalesforceServer() as org:
        looks = Looks(org.storage)
        looks(org.connector())
        org.objects["Account"].fields = {**org.objects["Account"].fields, "Later__c": "date"}
        assert len(looks(org.connector(), keeps=False)) == 1
        assert looks(org.connector()) == []
        assert len(looks.state.schema_changes) == 1


@pytest.mark.law("N20")
@pytest.mark.parametrize("bus", ["default", "none"])
def test_schema_change_is_audited_and_published_as_an_event(
    monkeypatch: pytest.MonkeyPatch, bus: str
) -> None:
    world, store, events = PolledWorld(monkeypatch), ItemAudit(MemoryItemStore()), []

    class Events:
        """EventBridge."""

        fails = 0

        def put_events(self, *, Entries: list[dict[str, str]]) -> dict[str, int]:  # noqa: N803
            """Take events."""
            events.extend(Entries)
            return {"FailedEntryCount": self.fails}

    tokens = iter("abcdef")
    audit = Audit(store, wall_clock=world.time.wall_clock, token=lambda: next(tokens))
    reports = SchemaReports(audit, bus, Events)
    monkeypatch.setattr(world.by_hand.polls, "_report", reports)
    world.poll()
    ids = SourceColumn("id", "integer", False)
    world.alter(ids, SourceColumn("n", "date"))
    world.poll()
    [record], _ = audit.records("g", AuditQuery())
    change = {"table": "items", "column": "n", "severity": "note", "change": "is new: date"}
    assert (record.user, record.operation, record.target) == (
        "connector:shop", "sourceSchemaChanged", "shop"
    )  # fmt: skip
    assert (record.outcome.value, json.loads(record.after)) == ("done", {"changes": [change]})
    details = [json.loads(event["Detail"]) for event in events]
    expected = [{"gateway": "g", "connector": "shop"} | change] if bus == "default" else []
    assert details == expected
    monkeypatch.setattr(Events, "fails", 1)
    world.alter(ids)
    assert world.poll() == 1, "what is not reported stops no poll"
    assert len(world.listed()) == 2
