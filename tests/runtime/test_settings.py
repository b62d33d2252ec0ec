"""Settings: read once, complete or refused with every fault named."""

from __future__ import annotations

import pytest

from lakesync.runtime.settings import (
    AdminSettings,
    AuthoriseSettings,
    FlushSettings,
    MaterialiseSettings,
    PullSettings,
    PushSettings,
    ScheduleFlushSettings,
    SettingsError,
    load,
)

PUSH = {
    "AWS_REGION": "eu-central-1",
    "BUFFER_TABLE": "buffer",
    "FLUSH_QUEUE_URL": "https://queue",
    "FLUSH_EVERY_MINUTES": "15",
    "FLUSH_THRESHOLD_BYTES": "8388608",
    "BACKPRESSURE_BYTES_MAX": "268435456",
    "BACKPRESSURE_AGE_S_MAX": "21600",
    "QUOTA_PUSHES_PER_S": "250",
    "QUOTA_DELTAS_PER_S": "0",
    "QUOTA_BYTES_PER_S": "20000000",
}
PUBLIC = {
    "JWT_ALGORITHMS": "RS256, ES256",
    "JWKS_URL": "https://keys",
    "JWT_ISSUER": "https://id.example",
    "JWT_AUDIENCE": "lakesync",
}
AUTHORISE = {"AWS_REGION": "eu-central-1", "JWT_ALGORITHMS": "HS256", "JWT_SECRET_ARN": "arn"}


def test_settings_are_typed() -> None:
    settings = load(PushSettings, PUSH)

    assert settings.flush_threshold_bytes == 8388608
    assert settings.endpoint is None


def test_every_faulty_setting_is_named_in_one_error() -> None:
    with pytest.raises(SettingsError) as caught:
        load(PushSettings, {"AWS_REGION": "", "FLUSH_THRESHOLD_BYTES": "many", "BUFFER_TABLE": "t"})

    for name in (
        "AWS_REGION",
        "FLUSH_QUEUE_URL",
        "FLUSH_THRESHOLD_BYTES",
        "BACKPRESSURE_AGE_S_MAX",
    ):
        assert name in str(caught.value)
    assert "BUFFER_TABLE" not in str(caught.value)


@pytest.mark.parametrize("value", ["0", "-1", "1.5", ""])
def test_limits_must_be_positive_numbers(value: str) -> None:
    with pytest.raises(SettingsError, match="BACKPRESSURE_BYTES_MAX"):
        load(PushSettings, PUSH | {"BACKPRESSURE_BYTES_MAX": value})


def test_a_quota_may_be_zero_and_not_negative() -> None:
    assert load(PushSettings, PUSH).quota_deltas == 0
    with pytest.raises(SettingsError, match="QUOTA_DELTAS_PER_S"):
        load(PushSettings, PUSH | {"QUOTA_DELTAS_PER_S": "-1"})


@pytest.mark.parametrize(
    "kind",
    [
        PushSettings, PullSettings, AdminSettings, FlushSettings, ScheduleFlushSettings,
        MaterialiseSettings, AuthoriseSettings,
    ],
)  # fmt: skip
def test_no_function_starts_without_its_environment(kind: type) -> None:
    with pytest.raises(SettingsError, match="AWS_REGION is missing"):
        load(kind, {})


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"JWT_ALGORITHMS": "none"}, "HS256, RS256 or ES256"),
        ({"JWT_ALGORITHMS": ""}, "JWT_ALGORITHMS"),
        ({"JWT_ALGORITHMS": "HS512"}, "HS512"),
        ({"JWT_ALGORITHMS": "HS256,RS256", "JWKS_URL": "https://keys"}, "HS256 alone"),
        ({"JWT_SECRET_ARN": ""}, "JWT_SECRET_ARN"),
        ({"JWT_ALGORITHMS": "RS256"}, "JWKS_URL"),
        ({"JWT_ALGORITHMS": "RS256", "JWKS_URL": "http://keys"}, "https"),
        (PUBLIC | {"JWT_ISSUER": ""}, "JWT_ISSUER"),
        (PUBLIC | {"JWT_AUDIENCE": ""}, "JWT_AUDIENCE"),
    ],
)
def test_the_authoriser_refuses_ambiguous_or_incomplete_settings(
    changed: dict[str, str], fault: str
) -> None:
    with pytest.raises(SettingsError, match=fault):
        load(AuthoriseSettings, AUTHORISE | changed)


def test_public_keys_need_no_secret() -> None:
    settings = load(AuthoriseSettings, PUBLIC | {"AWS_REGION": "r"})

    assert settings.algorithms == ("RS256", "ES256")
    assert not settings.shares_secret
