"""The registration of an action handler: its type, its settings, and who may run what."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import Field, ValidationError

from lakesync.actions.permission import PERMISSIONS_MAX, Asker, Permission
from lakesync.connectors.sql.configuration import Settings
from lakesync.errors import ValidationFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    try:
        return Registration.model_validate(body)
    except ValidationError as exc:
        faults = exc.errors(include_url=False, include_input=False, include_context=False)
        listed = [
            f"{'.'.join(map(str, fault['loc'])) or 'all'}: {fault['msg']}" for fault in faults
        ]
        raise ValidationFailed(
            f"this registers no action handler: {'; '.join(listed)}",
            field=".".join(map(str, faults[0]["loc"])) or None,
        ) from None


def stored_registration(body: bytes) -> Registration:
    """Read what `Registration.stored` wrote, in any release: unknown fields are left out."""
    fields: dict[str, Any] = json.loads(body)
    known = {field.alias or name for name, field in Registration.model_fields.items()}
    return Registration.model_validate({k: v for k, v in fields.items() if k in known})
