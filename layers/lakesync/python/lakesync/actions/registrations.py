"""The registration of an action handler: its type, its settings, and who may run what.

Permissions of an action handler: which roles, token claims and parameters may run what. A
permission names actions and conditions; all of its conditions must be true, and one permission is
enough. Conditions compare as sync rules do (`lakesync.core.rules`): a missing value matches
nothing. Administrators of the gateway run everything; without permissions nobody else runs
anything.

Law X5: ``docs/spec/actions.md``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

from pydantic import (
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    model_validator,
)

from lakesync.connectors.sql.sql_settings import Settings
from lakesync.core.delta import canonical
from lakesync.core.rules import (
    CLAIM_PREFIX,
    OPERATORS,
    VALUES_MAX,
    ClaimFilter,
    claim_of,
    condition,
    is_operand,
)
from lakesync.core.visibility import passes, resolved
from lakesync.declare import checked
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from lakesync.core.rules import Operand

# --- permissions ----------------------------------------------------------------------------------


CONDITIONS_MAX = 16
"""Conditions of one permission, of claims and of parameters each."""
PERMISSIONS_MAX = 20
"""Permissions of one action handler."""
Value = StrictStr | StrictBool | StrictInt | StrictFloat
Operator = Literal["eq", "neq", "in", "gt", "lt", "gte", "lte"]
assert set(Operator.__args__) == set(OPERATORS)  # type: ignore[attr-defined]  # noqa: S101


class Asker(NamedTuple):
    """Who asks for an action, by a token that was verified."""

    user: str
    claims: Mapping[str, Any]
    is_administrator: bool


class _Condition(Settings):
    """One comparison."""

    op: Operator
    value: Value | Annotated[list[Value], Field(min_length=1, max_length=VALUES_MAX)]

    @model_validator(mode="after")
    def _comparable(self) -> Self:
        values = self.value if isinstance(self.value, list) else [self.value]
        if not all(map(is_operand, values)):
            raise ValueError("a value is text, a number that a double holds, true or false")
        return self

    def operand(self) -> Operand:
        """Return the value for the comparison."""
        if isinstance(self.value, list):
            return tuple(self.value)
        if isinstance(self.value, str) and self.value.startswith(CLAIM_PREFIX):
            return claim_of(self.value.removeprefix(CLAIM_PREFIX))
        return self.value


class ClaimCondition(_Condition):
    """What a claim of the token must be; one of several values is enough."""

    claim: Annotated[str, Field(min_length=1, max_length=200)] = Field(
        description="The claim; nested ones by a dotted path."
    )

    def holds(self, claims: Mapping[str, Any]) -> bool:
        """Return whether it is true of a token."""
        return passes(ClaimFilter(claim_of(self.claim), self.op, self.operand()), claims)


class ParamCondition(_Condition):
    """What a parameter must be, compared with a literal or with a claim (``jwt:claim``)."""

    param: Annotated[str, Field(min_length=1, max_length=200)]

    def holds(self, params: Mapping[str, Any], claims: Mapping[str, Any]) -> bool:
        """Return whether it is true of parameters."""
        value = params.get(self.param)
        if value is None or isinstance(value, dict | list):
            return False
        return condition(self.op, resolved(self.operand(), claims))(canonical(value))


class Permission(Settings):
    """Who may run some of a handler's actions, and with which parameters."""

    actions: list[str] = Field(default_factory=list, max_length=50, description="None: all.")
    role: Literal["client", "admin"] | None = None
    claims: list[ClaimCondition] = Field(default_factory=list, max_length=CONDITIONS_MAX)
    params: list[ParamCondition] = Field(default_factory=list, max_length=CONDITIONS_MAX)

    def may_run(self, action: str, asker: Asker) -> bool:
        """Return whether somebody may run an action, with some parameters."""
        if self.actions and action not in self.actions:
            return False
        role = "admin" if asker.is_administrator else "client"
        if self.role is not None and self.role != role:
            return False
        return all(each.holds(asker.claims) for each in self.claims)

    def allows(self, action: str, params: Mapping[str, Any], asker: Asker) -> bool:
        """Return whether somebody may run an action with these parameters."""
        return self.may_run(action, asker) and all(
            each.holds(params, asker.claims) for each in self.params
        )


DEFINITION_BYTES_MAX: Final = 262_144
"""The size of a stored action handler: it is one item, of at most 400 KB."""
PER_MINUTE_MAX: Final = 6_000
"""Actions that one client may run in a minute: the greatest number that can be declared."""
NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"


class Registration(Settings):
    """What somebody asks to register; stored without its secrets."""

    name: Annotated[str, Field(pattern=NAME)]
    type: Annotated[str, Field(min_length=1, max_length=64)]
    configuration: dict[str, Any] = Field(default_factory=dict)
    allow: list[Permission] = Field(default_factory=list, max_length=PERMISSIONS_MAX)
    per_minute: int = Field(
        60, ge=1, le=PER_MINUTE_MAX, description="What each client may run in a minute."
    )
    replace: bool = Field(
        default=False, description="Put it in place of one of that name; secrets stay."
    )

    def stored(self, configuration: Mapping[str, Any]) -> bytes:
        """Write it, with settings that hold no secrets.

        Raises:
            ValidationFailed: it is too large.
        """
        kept = self.model_copy(update={"configuration": dict(configuration), "replace": False})
        text = kept.model_dump_json(by_alias=True, exclude={"replace"}).encode()
        if len(text) > DEFINITION_BYTES_MAX:
            raise ValidationFailed(
                f"an action handler takes {DEFINITION_BYTES_MAX} bytes at the most: declare "
                "another for some of its actions",
                field="configuration",
            )
        return text

    def allows(self, action: str, params: Mapping[str, Any], asker: Asker) -> bool:
        """Return whether somebody may run an action with these parameters."""
        return asker.is_administrator or any(
            each.allows(action, params, asker) for each in self.allow
        )

    def may_run(self, action: str, asker: Asker) -> bool:
        """Return whether somebody may run an action, with some parameters."""
        return asker.is_administrator or any(each.may_run(action, asker) for each in self.allow)


def registration_from(body: object) -> Registration:
    """Read a request to register an action handler.

    Raises:
        ValidationFailed: it is invalid; every fault is named, and no value is repeated.
    """
    return checked(Registration, body, "action handler")


def stored_registration(body: bytes) -> Registration:
    """Read what `Registration.stored` wrote, in any release: unknown fields are left out."""
    fields: dict[str, Any] = json.loads(body)
    known = {field.alias or name for name, field in Registration.model_fields.items()}
    return Registration.model_validate({k: v for k, v in fields.items() if k in known})
