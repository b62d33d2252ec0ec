"""Who may run what, with which parameters, how often, and what is refused before anything runs."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.actions import service
from lakesync.actions.engine import Asker
from lakesync.actions.service import registration_from
from lakesync.adapters import database_types
from lakesync.core.messages import Action, ActionOutcome, ActionPush
from lakesync.errors import ValidationFailed
from tests.support.acting import ADMINISTRATOR, Acting, use_memory_outside

if TYPE_CHECKING:
    from tests.support.acting import MemoryOutside

G = "g"
BOB = {"sub": "bob", "team": "blue", "customers": ["c1", "c2"], "org": {"level": 3}}


class World:
    """A gateway with one action handler of two actions."""

    def __init__(self, outside: MemoryOutside) -> None:
        self.outside = outside
        self.now_ms = 1_800_000_000_000
        self.acting = Acting(wall_clock=lambda: self.now_ms)
        self.asked = 0

    def allow(self, *permissions: dict[str, Any], **more: Any) -> None:
        """Say who may run what."""
        body = {"name": "out", "type": "memory", "configuration": {"actions": ["send", "drop"]},
                "allow": permissions, "replace": True}  # fmt: skip
        self.acting.admin.register(G, registration_from(body | more))

    def ask(
        self,
        action: str = "send",
        claims: dict[str, Any] | None = None,
        left_ms: int = 30_000,
        handler: str = "out",
        **params: Any,
    ) -> ActionOutcome:
        """Ask for an action as a client."""
        self.asked += 1
        asker = Asker("bob", BOB if claims is None else claims, is_administrator=False)
        push = ActionPush("c", (Action(f"a{self.asked}", "c", 0, handler, action, params),))
        return self.acting.service.push(G, asker, push, lambda: left_ms).results[0]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(use_memory_outside(monkeypatch))


def holds(world: World, **permission: Any) -> bool:
    world.allow(permission)
    return world.ask(to="c1").is_done


@pytest.mark.law("X5")
def test_without_permissions_only_administrators_run_an_action(world: World) -> None:
    world.allow()
    assert (world.ask().code, world.ask().retryable) == ("FORBIDDEN", False)
    push = ActionPush("c", (Action("x", "c", 0, "out", "send", {}),))
    assert world.acting.service.push(G, ADMINISTRATOR, push, lambda: 30_000).results[0].is_done


@pytest.mark.law("X5")
def test_handler_receives_the_claims_of_the_caller(world: World) -> None:
    seen: list[object] = []
    world.outside.before = lambda run: seen.append(run.claims)
    world.allow({})
    assert world.ask().is_done
    assert seen == [BOB]


@pytest.mark.law("X5")
@pytest.mark.parametrize(
    ("permission", "allowed"),
    [
        ({}, True),
        ({"actions": ["send"]}, True),
        ({"actions": ["drop"]}, False),
        ({"role": "client"}, True),
        ({"role": "admin"}, False),
        ({"claims": [{"claim": "team", "op": "eq", "value": "blue"}]}, True),
        ({"claims": [{"claim": "team", "op": "eq", "value": "red"}]}, False),
        ({"claims": [{"claim": "team", "op": "in", "value": ["red", "blue"]}]}, True),
        ({"claims": [{"claim": "team", "op": "neq", "value": "blue"}]}, False),
        ({"claims": [{"claim": "nothing", "op": "neq", "value": "blue"}]}, False),
        ({"claims": [{"claim": "customers", "op": "eq", "value": "c2"}]}, True),
        ({"claims": [{"claim": "customers", "op": "neq", "value": "c2"}]}, False),
        ({"claims": [{"claim": "org.level", "op": "gte", "value": 3}]}, True),
        ({"claims": [{"claim": "org.level", "op": "gt", "value": 3}]}, False),
        ({"params": [{"param": "to", "op": "in", "value": "jwt:customers"}]}, True),
        ({"params": [{"param": "to", "op": "eq", "value": "jwt:team"}]}, False),
        ({"params": [{"param": "to", "op": "eq", "value": "jwt:nothing"}]}, False),
        ({"params": [{"param": "n", "op": "lt", "value": 3}]}, False),
        ({"claims": [{"claim": "team", "op": "eq", "value": "blue"}],
          "params": [{"param": "to", "op": "eq", "value": "c9"}]}, False),
    ],
)  # fmt: skip
def test_all_conditions_of_one_permission_hold(
    world: World, *, permission: dict[str, Any], allowed: bool
) -> None:
    assert holds(world, **permission) is allowed
    assert len(world.outside.done) == int(allowed)


@pytest.mark.law("X5")
def test_one_matching_permission_suffices_and_a_withdrawn_one_no_longer_applies(
    world: World,
) -> None:
    world.allow({"actions": ["drop"]}, {"actions": ["send"]})
    assert world.ask().is_done
    world.allow({"actions": ["drop"]})
    assert world.ask().code == "FORBIDDEN"


@pytest.mark.law("X4")
def test_action_refused_by_permissions_can_run_after_they_change(world: World) -> None:
    world.allow()
    action = Action("same", "c", 0, "out", "send", {})
    asker = Asker("bob", BOB, is_administrator=False)

    def ask() -> ActionOutcome:
        push = ActionPush("c", (action,))
        return world.acting.service.push(G, asker, push, lambda: 30_000).results[0]

    assert ask().code == "FORBIDDEN"
    world.allow({})
    assert ask().is_done


@pytest.mark.law("X4")
@pytest.mark.parametrize(
    ("action", "params", "code"),
    [
        ("send", {"n": "many"}, "ACTION_VALIDATION_ERROR"),
        ("send", {"secret": 1}, "ACTION_VALIDATION_ERROR"),
        ("explode", {}, "ACTION_NOT_SUPPORTED"),
    ],
)
def test_action_that_does_not_fit_its_schema_is_not_run(
    world: World, action: str, params: dict[str, Any], code: str
) -> None:
    world.allow({})
    refused = world.ask(action, **params)

    assert (refused.code, refused.retryable) == (code, False)
    assert "many" not in refused.message
    assert world.outside.done == []


@pytest.mark.law("X4")
def test_action_without_enough_time_left_is_not_begun(world: World) -> None:
    world.allow({})
    refused = world.ask(left_ms=9_999)

    assert (refused.code, refused.retryable) == ("UNAVAILABLE", True)
    assert world.outside.done == []


@pytest.mark.law("X5")
def test_action_rate_of_a_client_is_limited_per_minute(world: World) -> None:
    world.allow({}, perMinute=2)

    assert [world.ask().code for _ in range(3)] == ["", "", "RATE_LIMITED"]
    world.now_ms += 60_000
    assert world.ask().is_done


@pytest.mark.law("X5")
def test_discovery_lists_only_the_actions_that_the_caller_may_run(world: World) -> None:
    world.allow({"actions": ["drop"], "params": [{"param": "to", "op": "eq", "value": "c1"}]})
    bob = Asker("bob", BOB, is_administrator=False)
    shown = world.acting.service.discover(G, bob)
    everything = world.acting.service.discover(G, ADMINISTRATOR)

    assert {name: [each.action_type for each in actions] for name, actions in shown.items()} == {
        "out": ["drop"]
    }
    assert [each.action_type for each in everything["out"]] == ["send", "drop"]
    assert everything["out"][0].params_schema["properties"]["n"] == {"type": "integer"}
    world.allow()
    assert world.acting.service.discover(G, bob) == {}


@pytest.mark.law("X5")
def test_actions_of_a_broken_package_are_unavailable_and_others_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.allow({})
    world.allow({}, name="broken")
    stored, known = world.acting.handlers, vars(database_types)["entry_points"]
    [broken] = [each for each in stored.handlers(G) if each.name == "broken"]
    definition = broken.definition.replace(b'"memory"', b'"tool"')
    assert stored.add(G, "broken", definition, replace=True)
    tool = EntryPoint("tool", "no_such:TOOL", service.GROUP)

    def there(*, group: str, name: str) -> Any:
        return [tool] if name == "tool" else known(group=group, name=name)

    monkeypatch.setattr(database_types, "entry_points", there)

    assert [*world.acting.service.discover(G, ADMINISTRATOR)] == ["out"]
    waits = world.ask(handler="broken")
    assert (waits.code, waits.retryable) == ("UNAVAILABLE", True)
    assert "no_such" not in waits.message
    assert world.ask().is_done


@pytest.mark.law("X6")
def test_secrets_are_passed_only_to_the_handler_and_kept_on_replacement(world: World) -> None:
    world.allow({}, configuration={"token": "hush", "actions": ["send"]}, replace=False)
    world.ask()
    world.allow({}, configuration={"actions": ["send", "drop"]})
    world.ask()

    assert world.outside.tokens == ["hush", "hush"]
    assert world.acting.secrets.stored == {"g/out": '{"token": "hush"}'}
    shown = repr((world.acting.admin.all(G), world.acting.handlers.handlers(G), world.acting.notes))
    assert "hush" not in shown
    world.acting.admin.remove(G, "out")
    assert (world.acting.secrets.stored, world.acting.admin.all(G)) == ({}, [])


@pytest.mark.law("X6")
def test_handlers_are_removed_with_their_gateway(world: World) -> None:
    world.allow({}, configuration={"token": "hush"})
    world.acting.admin.remove_all(G)
    world.acting.admin.remove_all(G)

    assert (world.acting.secrets.stored, world.acting.handlers.handlers(G)) == ({}, [])


@pytest.mark.law("X6")
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ([], "body"),
        ({"type": "memory"}, "name"),
        ({"name": "a b", "type": "memory"}, "name"),
        ({"name": "a", "type": "memory", "perMinute": 0}, "perMinute"),
        ({"name": "a", "type": "memory", "other": 1}, "other"),
        ({"name": "a", "type": "memory", "allow": [{"role": "owner"}]}, "allow[0].role"),
        ({"name": "a", "type": "memory",
          "allow": [{"claims": [{"claim": "c", "op": "like", "value": "x"}]}]},
         "allow[0].claims[0].op"),
    ],
)  # fmt: skip
def test_a_registration_is_refused_with_the_field_at_fault(body: object, field: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        registration_from(body)
    assert refused.value.field == field


@pytest.mark.law("X6")
def test_permission_for_an_unknown_action_is_refused(world: World) -> None:
    with pytest.raises(ValidationFailed, match="it has no action 'fly'"):
        world.allow({"actions": ["fly"]})
    assert world.acting.admin.all(G) == []
