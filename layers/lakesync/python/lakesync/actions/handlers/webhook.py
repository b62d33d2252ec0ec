"""Signed webhooks out, as `Standard Webhooks <https://www.standardwebhooks.com>`_ has them.

The receiver verifies ``webhook-signature`` with any library of that specification: an HMAC over the
id, the time and the body, so that nobody else can send one, or replay one later. The id is the same
for all attempts of one action: a receiver that drops ids that it has already seen gets each once.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final

from pydantic import Field, SecretStr, field_validator, model_validator

from lakesync.actions.handlers.common import (
    DECLARED_MAX,
    DROPS_REPEATS,
    DeclaredAction,
    message_of,
    unique,
)
from lakesync.actions.port import (
    NOT_DONE,
    UNKNOWN,
    Done,
    HandlerType,
    Looked,
    Run,
    SupportedAction,
)
from lakesync.adapters.network import resolved_addresses
from lakesync.connectors.http import Target, is_listed, target_of, trusted
from lakesync.connectors.signatures import key, signed
from lakesync.connectors.sql.sql_settings import Settings
from lakesync.errors import (
    ActionFailed,
    AdapterQuotaExceeded,
    AdapterRefused,
    AdapterUnreachable,
    LakeSyncError,
    OutcomeUnknown,
    ValidationFailed,
)
from lakesync.result import Err, Ok, Result

if TYPE_CHECKING:
    from typing import Self

    from lakesync.adapters.network import Resolve
    from lakesync.connectors.port import Outside

ANSWER_BYTES_MAX: Final = 65_536
"""What of a receiver's answer is read."""
WAIT_S_MAX: Final = 3_600
"""How long a receiver may ask for patience."""
CONNECT_S_MAX: Final = 3.0
"""How long connecting may take, out of an action's time: nothing has happened before."""
_OK: Final = range(200, 300)
_LATER: Final = frozenset({429, 503})
_NOT_DONE: Final = range(300, 500)


class WebhookSettings(Settings):
    """Where webhooks go, and how they are signed."""

    url: str = Field(max_length=2_000, description="https, at a host that the operator allows.")
    secret: SecretStr = Field(description="whsec_ and base64 of 24 to 64 random bytes.")
    actions: list[DeclaredAction] = Field(min_length=1, max_length=DECLARED_MAX)
    drops_repeats: bool = DROPS_REPEATS

    @field_validator("secret")
    @classmethod
    def _is_secret(cls, value: SecretStr) -> SecretStr:
        key(value.get_secret_value())
        return value

    @model_validator(mode="after")
    def _sound(self) -> Self:
        unique(self.actions)
        if not self.url.startswith(("https://", "http://")):
            raise ValueError("url begins with https://")
        return self


class Webhook:
    """`lakesync.actions.ActionHandler` that posts to a URL."""

    def __init__(
        self,
        settings: WebhookSettings,
        allowed: tuple[str, ...],
        resolve: Resolve = resolved_addresses,
    ) -> None:
        self._settings = settings
        self._allowed = allowed
        self._resolve = resolve

    def supported_actions(self) -> list[SupportedAction]:
        """Return the declared actions."""
        return [action.supported() for action in self._settings.actions]

    def execute(self, run: Run) -> Result[Done, LakeSyncError]:
        """Post it."""
        import httpx  # noqa: PLC0415 - only who posts needs it

        try:
            target = target_of(self._settings.url, self._allowed, self._resolve)
        except AdapterRefused as error:
            return Err(ActionFailed(error.message))
        seconds = time.time()
        body = message_of(run, seconds)
        headers = {
            "content-type": "application/json",
            "user-agent": "lakesync",
            "webhook-id": run.run_id,
            "webhook-timestamp": str(int(seconds)),
            "webhook-signature": signed(
                self._settings.secret.get_secret_value(), run.run_id, int(seconds), body
            ),
        }
        try:
            return _post(target, headers, body, run.seconds)
        except (httpx.ConnectError, httpx.ConnectTimeout) as exc:
            return Err(AdapterUnreachable(f"{target.host} was not reached: {exc}"))
        except httpx.HTTPError as exc:
            return Err(OutcomeUnknown(f"{target.host} gave no answer: {type(exc).__name__}"))

    def lookup(self, run: Run) -> Result[Looked, LakeSyncError]:
        """Tell that it may be sent again, if its receiver drops what it has had."""
        del run
        return Ok(NOT_DONE if self._settings.drops_repeats else UNKNOWN)

    def close(self) -> None:
        """Hold nothing."""


def _post(
    target: Target, headers: dict[str, str], body: bytes, seconds: float
) -> Result[Done, LakeSyncError]:
    import httpx  # noqa: PLC0415 - only who posts needs it

    address = f"[{target.address}]" if ":" in target.address else target.address
    url = f"{target.scheme}://{address}:{target.port}{target.path}"
    deadline = time.monotonic() + seconds - 1
    timeout = httpx.Timeout(seconds - 2, connect=CONNECT_S_MAX)
    # The connection uses the address that was checked; the certificate must be the host's.
    extensions = {"sni_hostname": target.host}
    named = {**headers, "host": target.authority}
    with (
        httpx.Client(
            timeout=timeout, follow_redirects=False, trust_env=False, verify=trusted()
        ) as client,
        client.stream("POST", url, content=body, headers=named, extensions=extensions) as answer,
    ):
        raw = b""
        for part in answer.iter_bytes():
            raw += part
            if len(raw) > ANSWER_BYTES_MAX or time.monotonic() > deadline:
                break
        return _meaning(target.host, answer.status_code, answer.headers.get("retry-after"), raw)


def _meaning(
    host: str, status: int, retry_after: str | None, raw: bytes
) -> Result[Done, LakeSyncError]:
    if status in _OK:
        return Ok(Done({"status": status, "body": _read(raw)}))
    if status in _LATER:
        wait_s = int(retry_after) if retry_after and retry_after.isdecimal() else None
        message = f"{host} answered {status}: it accepts no more for now"
        return Err(AdapterQuotaExceeded(
            message, retry_after_s=None if wait_s is None else min(wait_s, WAIT_S_MAX)
        ))  # fmt: skip
    if status in _NOT_DONE:
        message = json.dumps(_read(raw[:500]), ensure_ascii=False)
        return Err(ActionFailed(f"the receiver refused it with {status}: {message[:300]}"))
    return Err(OutcomeUnknown(f"{host} answered {status}: it failed, perhaps after it was done"))


def _read(raw: bytes) -> Any:
    """Return an answer's JSON value, else its text, as far as it was read."""
    text = raw[:ANSWER_BYTES_MAX].decode("utf-8", "replace")
    if len(raw) > ANSWER_BYTES_MAX:
        return text
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return text


def _make(settings: WebhookSettings, outside: Outside) -> Webhook:
    if not is_listed(settings.url, outside.hosts):
        raise ValidationFailed(
            "the operator of this stack does not allow webhooks to that host: ask for it to be "
            "listed in ActionHosts",
            field="configuration.url",
        )
    return Webhook(settings, outside.hosts)


WEBHOOK: Final = HandlerType("webhook", "Signed webhook", WebhookSettings, _make)
