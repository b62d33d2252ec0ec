"""Connectors as administrators have them: registered once, without secrets, never polled twice."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.connectors import registry
from lakesync.connectors.connector_admin import CONNECTORS_MAX
from lakesync.connectors.polls import LEASE_MS
from lakesync.declare.flows import EVERY_MINUTES_MAX, read_connector
from lakesync.errors import (
    AdapterFailed,
    AdapterRefused,
    AdapterUnreachable,
    Conflict,
    NotFound,
    RateLimited,
    ValidationFailed,
)
from lakesync.gateway.access import Access
from lakesync.result import Err
from tests.support.gateways import GivenTime, pulled, pusher
from tests.support.packages import install
from tests.support.polling import MemorySecrets, PollingByHand
from tests.support.sources import TOKENS, use_memory_source

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.support.sources import MemorySource

G = "g"
BODY: dict[str, Any] = {"type": "memory", "name": "shop", "configuration": {"token": "hush"}}


class World:
    """A gateway with connectors."""

    def __init__(self, source: MemorySource) -> None:
        self.source = source
        self.time = GivenTime(1_800_000_000_000)
        self.buffer = MemoryBuffer()
        service = pusher(self.buffer, time_=self.time)
        self.by_hand = PollingByHand(service.push, self.time.wall_clock)
        self.admin = self.by_hand.admin

    def add(self, **more: Any) -> str:
        """Register a connector."""
        return self.admin.register(G, read_connector({**BODY, **more}))

    def poll(self, lease: int = 0) -> str:
        """Poll it."""
        return self.by_hand.polls.poll(G, "shop", lease, lambda: True).status

    @property
    def shown(self) -> dict[str, Any]:
        """What an administrator sees of it."""
        return self.admin.one(G, "shop")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """A gateway without connectors."""
    return World(use_memory_source(monkeypatch))


def test_poll_reports_lateness_and_whether_a_fault_needs_mending(
    world: World,
) -> None:
    world.add(everyMinutes=5)

    def step() -> tuple[str, int, bool]:
        done = world.by_hand.polls.poll(G, "shop", 0, lambda: True)
        return done.status, done.behind, done.has_fault

    assert step() == ("done", 0, False)
    world.time.now_ms += 31 * 60_000
    world.source.fails = [AdapterUnreachable("away", retry_after_s=1)]
    assert step() == ("wait", 6, False), "what is away is not somebody's to mend, but it is late"
    world.time.now_ms += 5 * 60_000
    world.source.fails = [AdapterRefused("no such column")]
    assert step() == ("done", 1, True), "it began five minutes ago"
    world.time.now_ms += 5 * 60_000
    assert step() == ("done", 0, False)


@pytest.mark.law("N8")
def test_a_connector_is_registered_once_and_polled_at_its_interval(world: World) -> None:
    assert world.add(everyMinutes=5) == "The source in memory answers."
    assert world.by_hand.schedules == {(G, "shop"): (5, False)}
    with pytest.raises(Conflict, match="already"):
        world.add()
    world.source.put({"a": 1})

    assert world.poll() == "done"
    shown = world.shown
    assert (shown["rows"], shown["polls"], shown["isPolling"], shown["hasIngest"]) == (
        1,
        1,
        True,
        True,
    )
    assert [delta.row_id for delta in pulled(world.buffer, G)] == ["a"]
    world.time.sleep_ms(90_000)
    assert world.shown["lagS"] == 90


@pytest.mark.law("N8")
def test_secrets_are_stored_apart_and_only_passed_to_the_connector(world: World) -> None:
    world.add()
    world.poll()
    stored = world.by_hand.store.connector(G, "shop")
    assert stored is not None
    texts = [repr(stored), json.dumps(world.shown), json.dumps(world.admin.all(G))]

    assert TOKENS == ["hush", "hush"]
    assert not [text for text in texts if "hush" in text]
    assert world.by_hand.secrets.stored == {"g/shop": '{"token": "hush"}'}


@pytest.mark.law("N8")
def test_registration_whose_source_check_fails_stores_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.source, "check", lambda: Err(AdapterRefused("wrong token")))
    with pytest.raises(ValidationFailed, match="wrong token"):
        world.add()
    assert world.by_hand.store.connectors(G) == []
    assert world.by_hand.secrets.stored == {}

    world.add(check=False)
    assert [each["name"] for each in world.admin.all(G)] == ["shop"]


@pytest.mark.law("N8")
def test_testing_settings_asks_the_source_and_stores_schedules_and_polls_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = world.admin.test(G, read_connector(BODY))
    assert answer == {
        "name": "shop", "message": "The source in memory answers.", "tables": ["things"]
    }  # fmt: skip
    assert TOKENS == ["hush"], "the source is asked with the secret"
    stored = (world.by_hand.store.connectors(G), world.by_hand.secrets.stored)
    assert stored == ([], {})
    assert (world.by_hand.objects.bodies, world.by_hand.schedules) == ({}, {})
    assert world.source.reads == 0

    world.add()
    before = world.by_hand.store.connector(G, "shop")
    world.admin.test(G, read_connector(BODY | {"configuration": {"token": "another"}}))
    assert world.by_hand.store.connector(G, "shop") == before
    assert world.by_hand.secrets.stored == {"g/shop": '{"token": "hush"}'}
    with pytest.raises(ValidationFailed) as fault:
        world.admin.test(G, read_connector(BODY | {"configuration": {"tokn": "hush"}}))
    assert "hush" not in str(fault.value)
    monkeypatch.setattr(world.source, "check", lambda: Err(AdapterRefused("wrong token")))
    with pytest.raises(ValidationFailed, match="wrong token"):
        world.admin.test(G, read_connector(BODY))


@pytest.mark.law("N8")
def test_registration_that_fails_midway_is_rolled_back(world: World) -> None:
    world.by_hand.secrets.fails = True
    with pytest.raises(AdapterFailed):
        world.add()

    assert world.by_hand.store.connectors(G) == []
    assert world.by_hand.schedules == {}


@pytest.mark.law("N8")
def test_removing_a_connector_keeps_its_rows_and_deletes_all_else(world: World) -> None:
    world.add()
    world.source.put({"a": 1})
    world.poll()
    world.admin.remove(G, "shop")

    assert world.poll() == "gone"
    assert world.by_hand.secrets.stored == {}
    assert world.by_hand.schedules == {}
    assert world.by_hand.objects.bodies == {}
    assert len(pulled(world.buffer, G)) == 1
    with pytest.raises(NotFound):
        world.admin.remove(G, "shop")
    world.add()
    assert world.poll() == "done"
    assert len(pulled(world.buffer, G)) == 1, "what comes again is a duplicate"


@pytest.mark.law("N8", "U8")
def test_connector_client_id_cannot_be_used_by_a_user(world: World) -> None:
    world.add()
    access = Access(world.by_hand.access, wall_clock=world.time.wall_clock)
    for name in ("connector:shop", "connector:other"):  # whether there is one of the name or not
        with pytest.raises(ValidationFailed, match="no client id of an app"):
            access.check_client(G, "ann", name)
    world.add(name="other")
    world.by_hand.access.bind(G, "connector:third", "ann")  # as before such ids were refused
    with pytest.raises(Conflict, match="another name"):
        world.add(name="third")


@pytest.mark.law("N7")
def test_poll_is_refused_as_busy_while_another_poll_runs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add()
    world.source.put({"a": 1})
    others: list[str] = []
    read = world.source.read

    def reading(*args: Any, **more: Any) -> Any:
        others.append(world.poll())
        return read(*args, **more)

    monkeypatch.setattr(world.source, "read", reading)

    assert world.poll() == "done"
    assert others == ["busy"]


@pytest.mark.law("N7")
def test_poll_whose_lease_expired_saves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add()
    world.source.put({"a": 1})
    read = world.source.read

    def slow(*args: Any, **more: Any) -> Any:
        page = read(*args, **more)
        world.time.sleep_ms(LEASE_MS + 1)
        monkeypatch.setattr(world.source, "read", read)
        assert world.poll() == "done"
        return page

    monkeypatch.setattr(world.source, "read", slow)

    assert world.poll() == "busy"
    assert world.shown["polls"] == 1


@pytest.mark.law("N7")
def test_poll_is_continued_only_with_its_lease(world: World) -> None:
    world.add()
    for number in range(2_500):
        world.source.put({str(number): number})
    first = world.by_hand.polls.poll(G, "shop", 0, iter([True, False]).__next__)

    assert first.status == "more"
    assert world.poll() == "busy"
    assert world.poll(first.lease) == "done"
    assert world.shown["rows"] == 2_500


@pytest.mark.law("N6")
def test_poll_waits_until_the_retry_after_time_of_a_rate_limited_source(world: World) -> None:
    world.add()
    world.source.fails = [RateLimited("slower", retry_after_s=300)]

    assert world.poll() == "wait"
    reads = world.source.reads
    assert world.poll() == "busy"
    assert world.source.reads == reads
    assert world.shown["waitS"] == 300
    assert world.shown["lastError"]["code"] == "RATE_LIMITED"
    world.time.sleep_ms(300_000)
    assert world.poll() == "done"
    assert "lastError" in world.shown, "the poll had one"
    world.time.sleep_ms(1_000)
    world.poll()
    assert "lastError" not in world.shown


def test_a_paused_connector_is_not_polled_until_it_is_resumed(world: World) -> None:
    world.add()
    world.admin.set_paused(G, "shop", paused=True)
    assert world.by_hand.schedules == {(G, "shop"): (15, True)}
    assert world.poll() == "paused"
    with pytest.raises(Conflict, match="resume"):
        world.admin.run(G, "shop")
    world.admin.set_paused(G, "shop", paused=False)
    world.admin.run(G, "shop")

    assert world.shown["polls"] == 1


def test_a_reset_connector_reads_everything_again_and_forgets_dead_letters(world: World) -> None:
    world.add()
    world.source.put({"a": 1, "": 2})
    world.poll()
    assert world.shown["deadLetters"][0]["rowId"] == ""
    world.source.log = world.source.log[:1]
    world.admin.reset(G, "shop")
    world.poll()

    assert world.shown["deadLetters"] == []
    assert world.shown["rows"] == 1
    assert len(pulled(world.buffer, G)) == 1


class RememberingSecrets(MemorySecrets):
    """Secrets as one warm process has them, beside another that changes them."""

    def __init__(self) -> None:
        super().__init__()
        self.read: dict[str, Mapping[str, str]] = {}

    def get(self, name: str) -> Mapping[str, str]:
        """Return a secret, as it was read first."""
        return self.read.setdefault(name, super().get(name))

    def get_anew(self, name: str) -> Mapping[str, str]:
        self.read.pop(name, None)
        return self.get(name)


@pytest.mark.law("N8")
def test_replaced_secret_is_used_at_once_when_the_old_one_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = RememberingSecrets()
    world.by_hand = PollingByHand(world.by_hand.push, world.time.wall_clock, secrets=secrets)
    world.admin = world.by_hand.admin
    world.add()
    world.poll()
    read = world.source.read

    def refusing(table: str, cursor: str, **more: Any) -> Any:
        if TOKENS[-1] == "hush":
            return Err(AdapterRefused("it does not take the credentials"))
        return read(table, cursor, **more)

    monkeypatch.setattr(world.source, "read", refusing)
    world.source.put({"a": 1})
    world.time.sleep_ms(60_000)
    world.poll()
    assert TOKENS.count("hush") == len(TOKENS), "nothing new is there: it is not polled again"
    MemorySecrets.put(secrets, "g/shop", {"token": "new"})  # by another process
    world.time.sleep_ms(60_000)
    assert world.poll() == "done"

    assert TOKENS[-2:] == ["hush", "new"]
    assert world.shown["rows"] == 1
    MemorySecrets.put(secrets, "g/shop", {"token": "newer"})
    world.admin.check(G, "shop")
    assert TOKENS[-1] == "newer"


def test_changed_settings_keep_secrets_that_they_do_not_name(world: World) -> None:
    world.add()
    world.admin.configure(G, "shop", {"table": "others"})
    assert world.shown["configuration"] == {"table": "others"}
    world.admin.configure(G, "shop", {"token": "new"})
    world.admin.check(G, "shop")

    assert TOKENS[1:] == ["hush", "new", "new"]
    with pytest.raises(ValidationFailed):
        world.admin.configure(G, "shop", {"nothing": 1})


@pytest.mark.law("N8")
def test_changed_settings_keep_a_secret_that_another_process_stored(world: World) -> None:
    secrets = RememberingSecrets()
    world.by_hand = PollingByHand(world.by_hand.push, world.time.wall_clock, secrets=secrets)
    world.admin = world.by_hand.admin
    world.add()
    world.admin.check(G, "shop")
    MemorySecrets.put(secrets, "g/shop", {"token": "rotated"})
    world.admin.configure(G, "shop", {"table": "others"})

    assert TOKENS[-1] == "rotated"
    assert secrets.stored == {"g/shop": '{"token": "rotated"}'}


def test_poll_of_a_connector_whose_type_is_gone_reports_the_missing_type(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add()
    monkeypatch.setattr(registry, "BUILT_IN", {})

    assert world.poll() == "done"
    assert "no connector of type" in world.shown["lastError"]["error"]


def test_connectors_above_the_maximum_of_a_gateway_are_refused(world: World) -> None:
    for number in range(CONNECTORS_MAX):
        world.add(name=f"c{number}")
    with pytest.raises(ValidationFailed, match=str(CONNECTORS_MAX)):
        world.add(name="more")
    world.admin.remove_all(G)

    assert world.by_hand.schedules == {}
    assert world.admin.all(G) == []


@pytest.mark.parametrize("every", [0, 0.5, 0.1, -3])
def test_an_interval_below_a_minute_is_refused_with_the_reason(world: World, every: float) -> None:
    with pytest.raises(ValidationFailed, match=r"at least 1: .* shortest interval is a minute"):
        world.add(everyMinutes=every)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": "no name"}, "name"),
        ({"name": ""}, "name"),
        ({"type": 5}, "type"),
        ({"type": "nothing"}, "type"),
        ({"everyMinutes": 0}, "everyMinutes"),
        ({"everyMinutes": True}, "everyMinutes"),
        ({"everyMinutes": EVERY_MINUTES_MAX + 1}, "everyMinutes"),
        ({"configuration": []}, "configuration"),
        ({"configuration": {"token": "x" * 20_000}}, "configuration"),
        ({"configuration": {"token": 5}}, "configuration.token"),
        ({"configuration": {}}, "configuration.token"),
        ({"configuration": {"token": "x", "more": 1}}, "configuration.more"),
        ({"check": "yes"}, "check"),
        ({"more": 1}, "more"),
    ],
)
def test_invalid_registration_is_refused_with_the_field_at_fault(
    world: World, change: dict[str, Any], field: str
) -> None:
    with pytest.raises((ValidationFailed, NotFound)) as refused:
        world.add(**change)

    assert refused.value.field == field


def test_entry_point_that_fails_to_import_is_named_and_other_types_are_listed(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(monkeypatch, tmp_path, "a-shop", "import no_such", {registry.GROUP: {"shop": "SHOP"}})
    listed = {each["type"]: each for each in registry.all_described()}

    assert {"memory", *registry.BUILT_IN, "shop"} == {*listed}
    assert listed["shop"].keys() == {"type", "title", "error"}
    assert "entry point shop cannot be imported" in listed["shop"]["error"]
    assert all("configuration" in each for name, each in listed.items() if name != "shop")
    with pytest.raises(NotFound, match="a_shop:SHOP of the package a-shop: ModuleNotFound"):
        world.add(type="shop")
    world.add()


def test_connector_types_are_described_with_secrets_marked_write_only() -> None:
    described = {
        name: registry.described(registry.connector_type(name)) for name in registry.type_names()
    }

    secrets = {
        "mysql": "password", "postgres": "password", "jira": "apiToken",
        "salesforce": "clientSecret",
    }  # fmt: skip
    assert secrets.keys() <= described.keys()
    for name, secret in secrets.items():
        properties = described[name]["configuration"]["properties"]
        assert [each for each in properties if properties[each].get("writeOnly")] == [secret]
        assert "overlapS" in properties
    assert registry.secret_names(registry.connector_type("mysql")) == {"password"}
