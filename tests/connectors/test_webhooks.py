"""Webhooks in: whoever knows the secret is heard once, and what he says is what a poll says."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakesync.buffer.memory_buffer import MemoryBuffer
from lakesync.buffer.memory_items import MemoryItemStore
from lakesync.connectors import Change, Unreadable
from lakesync.connectors.incoming_webhooks import AHEAD_S_MAX, WEBHOOKS_PER_MINUTE_MAX, Taken
from lakesync.connectors.port import check_hub_signature, signature_of, standard_webhook
from lakesync.declare.flows import read_connector
from lakesync.errors import (
    AuthFailed,
    Backpressure,
    Conflict,
    InternalError,
    RateLimited,
    ValidationFailed,
)
from lakesync.systems.jira.jira_connector import REPEATED_S_MAX
from tests.support.gateways import GivenTime, pulled, pusher
from tests.support.lake import Killed
from tests.support.polling import PollingByHand
from tests.support.sources import use_memory_source
from tests.support.vendors.jira import EMAIL, TOKEN, JiraServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lakesync.core.messages import Push, PushReceipt
    from tests.support.sources import MemorySource

G = "g"
NOW_MS = 1_800_000_000_000
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
JIRA_SECRET = "it's a secret to everybody"
STANDARD_AGE_S_MAX = 300


class World:
    """A gateway with one connector, whose source sends webhooks."""

    def __init__(self, **more: Any) -> None:
        self.time = GivenTime(NOW_MS)
        self.buffer = MemoryBuffer()
        self.before_push: list[BaseException] = []
        self._push = pusher(self.buffer, time_=self.time).push
        self.by_hand = PollingByHand(self.push, self.time.wall_clock, **more)
        self.sent = 0

    def push(self, gateway: str, push: Push) -> PushReceipt:
        """Push, unless something is in the way."""
        if self.before_push:
            raise self.before_push.pop(0)
        return self._push(gateway, push)

    def add(self, **body: Any) -> None:
        """Register the connector."""
        self.by_hand.admin.register(G, read_connector({"type": "memory", "name": "shop"} | body))

    def take(self, headers: dict[str, str], body: bytes, name: str = "shop") -> Taken:
        """Hand a webhook in."""
        return self.by_hand.webhooks.take(G, name, headers, body)

    def headers(self, body: bytes, *, id_: str = "", ago_s: int = 0) -> dict[str, str]:
        """Sign a body as Standard Webhooks has it."""
        self.sent += not id_
        seconds = self.time.wall_clock() // 1000 - ago_s
        id_ = id_ or f"msg_{self.sent}"
        return {
            "webhook-id": id_,
            "webhook-timestamp": str(seconds),
            "webhook-signature": f"v1a,else {signature_of(SECRET, id_, seconds, body)}",
        }

    def tell(self, *places: int, id_: str = "") -> Taken:
        """Let the source in memory tell of entries of its log."""
        body = json.dumps(places).encode()
        return self.take(self.headers(body, id_=id_), body)

    def poll(self) -> None:
        """Poll, to the end."""
        assert self.by_hand.polls.poll(G, "shop", 0, lambda: True).status == "done"

    @property
    def came(self) -> list[tuple[str, str]]:
        """What a client has: deltas in the order in which they came."""
        return [(delta.row_id, delta.op.name) for delta in pulled(self.buffer, G)]


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> MemorySource:
    return use_memory_source(monkeypatch)


@pytest.fixture
def world(source: MemorySource) -> World:
    world = World()
    world.add(configuration={"token": "hush", "webhookSecret": SECRET})
    source.put({"a": 1, "b": 2})
    source.delete("a")
    return world


def refusal(world: World, headers: dict[str, str], body: bytes, name: str = "shop") -> str:
    with pytest.raises(AuthFailed) as caught:
        world.take(headers, body, name)
    return caught.value.message


# ---- who is heard --------------------------------------------------------------------------------


@pytest.mark.law("N14")
@given(
    st.binary(max_size=40), st.integers(0, 400), st.integers(0, 7),
    st.sampled_from(["body", "webhook-id", "webhook-timestamp", "webhook-signature", "secret"]),
)  # fmt: skip
def test_signature_with_any_bit_flipped_is_refused(
    body: bytes, place: int, bit: int, what: str
) -> None:
    right = {
        "webhook-id": "msg_1", "webhook-timestamp": "1700000000",
        "webhook-signature": signature_of(SECRET, "msg_1", 1_700_000_000, body),
    }  # fmt: skip
    assert standard_webhook(SECRET, right, body) == ("msg_1", 1_700_000_000_000)
    digest = hmac.new(JIRA_SECRET.encode(), body, hashlib.sha256).hexdigest()
    assert check_hub_signature(JIRA_SECRET, {"x-hub-signature": f"sha256={digest}"}, body)

    def changed(raw: bytes) -> bytes:
        at = place % (len(raw) or 1)
        flipped = (raw[at] ^ (1 << bit)) if raw else 1
        return raw[:at] + bytes([flipped]) + raw[at + 1 :]

    headers, secret, hub_secret, sent = dict(right), SECRET, JIRA_SECRET, body
    hub = {"x-hub-signature": f"sha256={digest}"}
    if what == "body":
        sent = changed(body)
    elif what == "secret":
        secret, hub_secret = "whsec_" + "A" * 32, JIRA_SECRET + "!"
    else:
        headers[what] = changed(right[what].encode()).decode("latin-1")
        hub = {"x-hub-signature": changed(hub["x-hub-signature"].encode()).decode("latin-1")}
    with pytest.raises(AuthFailed):
        standard_webhook(secret, headers, sent)
    with pytest.raises(AuthFailed):
        check_hub_signature(hub_secret, hub, sent)


@pytest.mark.law("N14")
def test_refusals_are_identical_for_wrong_signature_and_unknown_connector(
    world: World, source: MemorySource
) -> None:
    world.add(name="deaf", configuration={"token": "hush"})
    body = b"[1]"
    right = world.headers(body)
    wrong = right | {"webhook-signature": "v1,AAAA"}
    answers = {
        refusal(world, wrong, body),
        refusal(world, {}, body),
        refusal(world, right, body, "deaf"),
        refusal(world, right, body, "nobody"),
    }

    assert len(answers) == 1
    assert world.came == []
    assert source.reads == 0


@pytest.mark.law("N14")
@pytest.mark.parametrize("ago_s", [STANDARD_AGE_S_MAX + 1, -AHEAD_S_MAX - 1])
def test_signature_outside_the_time_window_is_refused_with_the_reason(
    world: World, ago_s: int
) -> None:
    edge_s = STANDARD_AGE_S_MAX if ago_s > 0 else -AHEAD_S_MAX
    body = b"[0]"
    assert "check the clock" in refusal(world, world.headers(body, ago_s=ago_s), body)
    assert world.take(world.headers(body, ago_s=edge_s), body) == Taken(1)


@pytest.mark.law("N14")
def test_connector_without_a_webhook_secret_refuses_webhooks_and_null_removes_it(
    world: World,
) -> None:
    body = b"[0]"
    world.by_hand.admin.configure(G, "shop", {})
    assert world.tell(0) == Taken(1)
    world.by_hand.admin.configure(G, "shop", {"webhookSecret": None})
    assert "signature" in refusal(world, world.headers(body), body)
    assert json.loads(world.by_hand.secrets.stored["g/shop"]) == {"token": "hush"}
    world.add(name="other", configuration={"token": "hush", "webhookSecret": None})
    assert json.loads(world.by_hand.secrets.stored["g/other"]) == {"token": "hush"}
    assert world.by_hand.admin.one(G, "shop")["webhook"] == "/connectors/g/shop/webhook"


# ---- what becomes of it --------------------------------------------------------------------------


@pytest.mark.law("N2", "N14")
def test_poll_after_a_webhook_gives_only_duplicates(world: World) -> None:
    assert world.tell(1) == Taken(1)
    assert world.tell(0, 2) == Taken(2)
    came = world.came
    world.time.sleep_ms(60_000)
    world.poll()

    assert sorted(came) == [("a", "DELETE"), ("a", "INSERT"), ("b", "INSERT")]
    assert world.came == came
    assert world.by_hand.admin.one(G, "shop")["rows"] == 3


@pytest.mark.law("N14")
def test_repeated_webhook_delivery_is_ignored(world: World, source: MemorySource) -> None:
    assert world.tell(0, id_="msg_x") == Taken(1)
    source.heard = 0
    world.time.sleep_ms(10_000)  # sent again: signed anew, under its id
    assert world.tell(0, id_="msg_x") == Taken(0, is_repeated=True)
    assert source.heard == 0
    assert world.tell(1) == Taken(1)


@pytest.mark.law("N14")
def test_webhook_that_was_not_accepted_is_taken_when_resent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.before_push = [Backpressure("later"), Killed()]
    with pytest.raises(Backpressure):
        world.tell(1, id_="m")
    with pytest.raises(Killed):
        world.tell(1, id_="m")
    begin = world.by_hand.deliveries.begin

    def dies(*_: object) -> bool:
        monkeypatch.setattr(world.by_hand.deliveries, "begin", begin)
        raise Killed

    monkeypatch.setattr(world.by_hand.deliveries, "begin", dies)
    with pytest.raises(Killed):
        world.tell(1, id_="m")

    assert world.tell(1, id_="m") == Taken(1)
    assert world.tell(1, id_="m") == Taken(0, is_repeated=True)
    assert world.came == [("b", "INSERT")]


@pytest.mark.law("N2", "N14")
def test_webhook_change_without_a_time_is_dated_by_its_sending_time(
    world: World, source: MemorySource
) -> None:
    source.log = [Change("z", {"value": 1})]
    body = b"[0]"
    headers = world.headers(body)
    for _ in range(2):
        world.time.sleep_ms(7_000)
        world.take(headers, body)
        world.by_hand.deliveries.__init__(MemoryItemStore())  # type: ignore[misc]  # never noted

    assert world.came == [("z", "INSERT")]


@pytest.mark.law("N4", "N14")
def test_refused_webhook_row_is_reported_and_the_next_poll_keeps_a_dead_letter(
    world: World, source: MemorySource
) -> None:
    source.log.append(Change("bad", {"no column": 1}, source.clock_us))
    source.log.append(Unreadable("worse", "no JSON"))
    with pytest.raises(ValidationFailed, match="2 of 3 rows were refused, the first") as caught:
        world.tell(1, 3, 4)
    assert caught.value.code == "VALIDATION_ERROR"
    assert world.came == [("b", "INSERT")]
    world.poll()

    letters = world.by_hand.admin.one(G, "shop")["deadLetters"]
    assert {letter["rowId"] for letter in letters} == {"bad", "worse"}


@pytest.mark.law("N14")
def test_paused_connector_refuses_webhooks_and_excess_ones_are_rate_limited(world: World) -> None:
    world.by_hand.admin.set_paused(G, "shop", paused=True)
    with pytest.raises(Conflict, match="paused"):
        world.tell(1)
    world.by_hand.admin.set_paused(G, "shop", paused=False)
    for _ in range(WEBHOOKS_PER_MINUTE_MAX):
        world.by_hand.deliveries.count(G, "connector:shop", NOW_MS, WEBHOOKS_PER_MINUTE_MAX)
    with pytest.raises(RateLimited) as caught:
        world.tell(1)
    assert caught.value.retry_after_s == 60
    world.time.sleep_ms(60_000)
    assert world.tell(1) == Taken(1)


@pytest.mark.law("N14")
def test_unreadable_body_is_refused_and_a_connector_exception_is_an_internal_error(
    world: World,
) -> None:
    body = b"no JSON"
    with pytest.raises(ValidationFailed, match="JSON"):
        world.take(world.headers(body), body)
    with pytest.raises(InternalError, match="IndexError"):
        world.tell(99)
    assert world.tell(1) == Taken(1)


# ---- Jira Cloud ----------------------------------------------------------------------------------


class JiraWorld(World):
    """A gateway with a connector of Jira."""

    def __init__(self, site: JiraServer, **settings: Any) -> None:
        super().__init__(outside=site.outside)
        self.site = site
        self.time.now_ms = site.now_s() * 1000 + 1
        own = {
            "site": site.url, "email": EMAIL, "apiToken": TOKEN, "webhookSecret": JIRA_SECRET,
            "tables": [{"name": "issues"}, {"name": "comments"}], "reconcileMinutes": 0,
        }  # fmt: skip
        self.add(type="jira", configuration=own | settings, check=False)

    def tell_of(self, kind: str, issue_id: str, key: str = "", **more: Any) -> Taken:
        """Send an event as Jira does, with the issue as events have it."""
        self.time.now_ms = self.site.now_s() * 1000 + 1
        issue = {"id": issue_id, "key": key or f"ACME-{issue_id}",
                 "fields": {"summary": "as events have it", "description": "h1. Text"}}  # fmt: skip
        body = json.dumps(
            {"timestamp": int(self.time.now_ms), "webhookEvent": kind, "issue": issue} | more
        ).encode()
        digest = hmac.new(JIRA_SECRET.encode(), body, hashlib.sha256).hexdigest()
        headers = {"x-hub-signature": f"sha256={digest}"}
        self.last = headers, body
        return self.take(headers, body)


@pytest.fixture
def site() -> Iterator[JiraServer]:
    with JiraServer() as running:
        yield running


@pytest.mark.law("N2", "N10", "N14")
def test_jira_webhooks_give_the_rows_of_jira_polls(site: JiraServer) -> None:
    world = JiraWorld(site)
    site.put({"1": "first", "2": "second"})
    assert world.tell_of("jira:issue_created", "1") == Taken(1)
    site.put({"1": "again"})
    assert world.tell_of("jira:issue_updated", "1") == Taken(1)
    site.put({"3": "gone before it is asked for"})
    site.delete("3")
    assert world.tell_of("jira:issue_updated", "3") == Taken(0)
    assert world.came == [("1", "INSERT"), ("1", "INSERT")]
    world.poll()
    assert world.came == [("1", "INSERT"), ("1", "INSERT"), ("2", "INSERT")]
    site.delete("2")
    assert world.tell_of("jira:issue_deleted", "2") == Taken(1)
    assert world.take(*world.last) == Taken(0, is_repeated=True)

    assert world.came[-1] == ("2", "DELETE")
    assert world.tell_of("jira:version_released", "1") == Taken(0)


@pytest.mark.law("N10", "N14")
def test_poll_finds_the_deletion_of_an_issue_known_only_from_a_webhook(site: JiraServer) -> None:
    world = JiraWorld(site)
    world.poll()
    site.put({"1": "short-lived"})
    world.tell_of("jira:issue_created", "1")
    site.delete("1")  # and nobody tells
    world.time.now_ms = site.now_s() * 1000 + 60_000
    world.poll()

    assert world.came == [("1", "INSERT"), ("1", "DELETE")]
    assert not [name for name in world.by_hand.objects.bodies if "/webhooks/" in name]


@pytest.mark.law("N14")
def test_jira_events_of_other_projects_change_nothing(site: JiraServer) -> None:
    world = JiraWorld(site, projects=["ACME"])
    site.change("7", project="OTHER", summary="secret")
    assert world.tell_of("jira:issue_created", "7", "OTHER-7") == Taken(0)
    assert world.tell_of("jira:issue_deleted", "7", "OTHER-7") == Taken(0)

    assert world.came == []


@pytest.mark.law("N14")
@pytest.mark.parametrize(
    "more",
    [{"timestamp": "soon"}, {"timestamp": True}, {"issue": None}, {"issue": {"id": "../1"}},
     {"issue": {"id": "1"}}, {"issue": {"id": [], "key": "A-1"}}],
)  # fmt: skip
def test_an_event_that_names_no_time_or_issue_is_refused(
    site: JiraServer, more: dict[str, Any]
) -> None:
    world = JiraWorld(site)
    with pytest.raises(ValidationFailed):
        world.tell_of("jira:issue_updated", "1", **more)
    with pytest.raises(ValidationFailed):
        world.tell_of("jira:issue_deleted", "1", **more)


@pytest.mark.law("N14")
def test_jira_webhook_resent_after_more_than_an_hour_is_taken(site: JiraServer) -> None:
    world = JiraWorld(site)
    site.put({"1": "first"})
    world.before_push = [Backpressure("later")]
    with pytest.raises(Backpressure):
        world.tell_of("jira:issue_created", "1")
    world.time.sleep_ms(75 * 60_000)
    assert world.take(*world.last) == Taken(1)
    world.time.sleep_ms(1000 * REPEATED_S_MAX)
    with pytest.raises(AuthFailed, match="ago"):
        world.take(*world.last)
