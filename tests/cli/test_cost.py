"""`lakesync cost`: what it refuses, what it says, and that README says the same."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any

import pytest

from lakesync.analysis.connection import USAGE
from lakesync.cli import cost
from lakesync.cli.cost import AMOUNTS, CHOICES, MONTH_H, Description, counts, described
from lakesync.cli.cost import bill as prices
from lakesync.cli.cost.bill import bill
from tests.support.command_lines import run
from tests.support.price_table import COMMAND, README, price_table
from tests.support.some import some

if TYPE_CHECKING:
    from pathlib import Path

REGION = "us-east-1"


def said(*words: str) -> dict[str, Any]:
    """Return the answer for programs."""
    done = run("cost", *words, "--json")
    assert done.exit_code == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def usd(**given: Any) -> float:
    """Return what a description costs."""
    return bill(described(given), REGION).usd


def test_the_price_table_in_readme_is_that_of_the_command() -> None:
    assert price_table() in README.read_text("utf-8"), f"renew it: {COMMAND}"


def test_services_and_events_of_a_bill_each_sum_to_its_total() -> None:
    answer = said(
        "--devices", "5000", "--lake", "glue-runs", "--tables", "3", "--destinations", "1"
    )

    assert sum(line["usd"] for line in answer["services"]) == pytest.approx(answer["usd"], abs=0.01)
    assert sum(event["usd"] for event in answer["events"]) == pytest.approx(answer["usd"], abs=0.01)
    services = {line["service"] for line in answer["services"]}
    assert {"Lambda", "API Gateway", "DynamoDB", "S3", "SQS", "EventBridge", "Step Functions"} < (
        services
    )
    assert {"Glue", "Secrets Manager", "CloudWatch", "CloudWatch Logs", "Data transfer"} < services


def test_the_cost_text_shows_every_service_the_floor_and_the_date_of_prices() -> None:
    shown = run("cost").stdout

    answer = said()
    assert (
        f"${answer['usd']:,.2f} a month, of which ${answer['floorUsd']:,.2f} in any case" in shown
    )
    assert f"{REGION}, prices of {prices.shipped().date}, on demand, without free tier" in shown
    assert all(line["service"] in shown for line in some(answer["services"]))


def test_a_stack_without_devices_costs_the_floor() -> None:
    answer = said("--devices", "0")

    assert answer["usd"] == pytest.approx(answer["floorUsd"], abs=0.001)


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, one in AMOUNTS.items() for value in (one.least - 1, one.most + 1)],
)
def test_a_cost_input_out_of_bounds_is_refused_with_bounds_and_unit(
    name: str, value: float
) -> None:
    option = f"--{name.replace('_', '-')}"
    done = run("cost", option, str(value))

    amount = AMOUNTS[name]
    assert done.exit_code == USAGE
    bounds = f"{option} is from {amount.least:,g} to {amount.most:,.0f} {amount.unit}, not"
    assert bounds in done.stderr


@pytest.mark.parametrize("value", ["nan", "inf", "many"])
def test_a_cost_input_that_is_not_a_number_is_refused(value: str) -> None:
    assert run("cost", "--devices", value).exit_code == USAGE


@pytest.mark.parametrize("name", CHOICES)
def test_an_unknown_choice_is_refused_with_the_known_ones(name: str) -> None:
    option = f"--{name.replace('_', '-')}"
    done = run("cost", option, "perhaps")

    assert done.exit_code == USAGE
    assert f"is none: use {' or '.join(CHOICES[name].options)}" in done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--region mars-1", "the prices of 'mars-1' are not known, only those of us-east-1"),
        ("--region mars-1", "run lakesync cost --print-prices --region mars-1 > prices.json"),
        ("--devices 5 --receivers 9", "--receivers 9 is more than the other devices there are: 4"),
        ("--devices 5 --tenants 9", "--tenants 9 is more than --devices 5"),
    ],
)
def test_a_region_without_prices_and_contradictory_inputs_are_refused(
    words: str, sentence: str
) -> None:
    done = run("cost", *words.split())

    assert done.exit_code == USAGE
    assert sentence in done.stderr


def test_every_price_has_a_unit_a_source_and_a_day() -> None:
    read = dt.date.fromisoformat(prices.shipped().date)
    assert dt.date(2026, 1, 1) < read <= dt.datetime.now(tz=dt.UTC).date()
    for region in some(prices.shipped().regions):
        for name, price in some(prices.shipped().of(region).items()):
            assert price.unit, name
            assert price.source.startswith("https://aws.amazon.com/"), name
            assert price.usd(1) > 0, name


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A file of prices as it is printed for a Region whose prices are not known."""
    done = run("cost", "--print-prices", "--region", "eu-west-1")
    assert done.exit_code == 0, done.output
    file = tmp_path / "prices.json"
    file.write_text(done.stdout, "utf-8")
    return file


def filled(file: Path, factor: float, *left: str) -> None:
    """Fill in the prices of us-east-1 times a factor, and leave out some."""
    content = json.loads(file.read_text("utf-8"))
    [entries] = content["regions"].values()
    for name, known in json.loads(prices.FILE.read_text("utf-8"))["regions"][REGION].items():
        if name in left:
            continue
        entries[name]["price"] = known["price"] * factor
        for to, of in zip(entries[name].get("tiers", ()), known.get("tiers", ()), strict=True):
            to["price"] = of["price"] * factor
    file.write_text(json.dumps(content), "utf-8")


def test_a_region_without_shipped_prices_is_priced_by_a_users_file(own: Path) -> None:
    filled(own, 2, "nat_hours", "nat_gb", "traces")
    words = ("--devices", "5000", "--lake", "small-batches", "--prices", str(own))

    answer = said(*words, "--region", "eu-west-1")

    assert answer["usd"] == pytest.approx(2 * said(*words[:-2])["usd"])
    assert answer["region"] == "eu-west-1"
    assert answer["pricesOf"] == json.loads(own.read_text("utf-8"))["date"]
    assert said(*words) == answer, "the only Region of a file need not be named"


def test_a_missing_price_that_the_description_needs_is_refused(own: Path) -> None:
    filled(own, 1, "nat_hours", "metrics")

    done = run("cost", "--prices", str(own), "--private", "nat")

    assert done.exit_code == USAGE
    assert "has no price in eu-west-1 of metrics (CloudWatch, metrics of one's own; " in done.stderr
    assert "nat_hours (VPC, hours of NAT gateways; https://aws.amazon.com/vpc/" in done.stderr


def test_printed_prices_read_from_a_file_give_the_same_cost(tmp_path: Path) -> None:
    printed = run("cost", "--print-prices").stdout
    file = tmp_path / "prices.json"
    file.write_text(printed, "utf-8")

    assert prices.read_prices(str(file)).of(REGION) == prices.shipped().of(REGION)
    assert said("--prices", str(file)) == said()


@pytest.mark.parametrize(
    ("at", "value", "sentence"),
    [
        ("", [], "the file must be an object"),
        ("currency", "EUR", 'currency must be "USD"'),
        ("date", "yesterday", "date must be the day"),
        ("regions", {}, "regions has none"),
        ("regions", None, "regions must be an object"),
        ("regions.eu-west-1", 3, "regions.eu-west-1 must be an object"),
        ("regions.eu-west-1.secrets", 0.4, "regions.eu-west-1.secrets must be an object"),
        ("regions.eu-west-1.secrets.price", -1, "secrets.price must be a number, 0 or more, not"),
        ("regions.eu-west-1.secrets.price", True, "secrets.price must be a number"),
        ("regions.eu-west-1.secrets.price", "0.4", "secrets.price must be a number"),
        ("regions.eu-west-1.secrets.per", 0, "secrets.per is 0"),
        ("regions.eu-west-1.secrets.per", None, "secrets.per must be a number"),
        ("regions.eu-west-1.secrets.unit", "", "secrets.unit must be a text"),
        ("regions.eu-west-1.metrics.tiers", [], "metrics.tiers must be a list of tiers"),
        ("regions.eu-west-1.metrics.tiers", [{"price": 1, "up_to": 9}], "must follow each other"),
        (
            "regions.eu-west-1.metrics.tiers",
            [{"price": 1, "up_to": 9}, {"price": 1, "up_to": 9}, {"price": 1}],
            "must follow each other",
        ),
        ("regions.eu-west-1.metrics.tiers", [{"price": 1}, {"price": 1}], "up_to must be a number"),
    ],
)
def test_a_malformed_price_file_is_refused_with_the_place(
    own: Path, at: str, value: object, sentence: str
) -> None:
    filled(own, 1)
    content = json.loads(own.read_text("utf-8"))
    *path, last = at.split(".")
    place = content
    for part in path:
        place = place[part]
    if at:
        place[last] = value
    own.write_text(json.dumps(content if at else value), "utf-8")

    done = run("cost", "--prices", str(own))

    assert done.exit_code == USAGE
    assert str(own) in done.stderr
    assert sentence in done.stderr


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b'{"date": NaN}'])
def test_a_price_file_that_is_missing_or_not_json_is_refused(
    tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "prices.json"
    file.write_bytes(content)

    assert run("cost", "--prices", str(file)).exit_code == USAGE
    assert run("cost", "--prices", str(file) + "-none").exit_code


def test_print_prices_excludes_prices_and_from_usage() -> None:
    for more in (["--prices", "-"], ["--from-usage"]):
        done = run("cost", "--print-prices", *more)
        assert done.exit_code == USAGE
        assert "leave --prices and --from-usage out" in done.stderr


def test_a_tiered_price_is_charged_tier_by_tier() -> None:
    price = prices.shipped().of(REGION)["http_requests"]

    assert price.usd(400e6) == pytest.approx(300 * 1.0 + 100 * 0.9)


def test_every_use_of_an_event_has_a_price() -> None:
    everything = described({
        "devices": 1_000, "tables": 3, "destinations": 2, "lake": "small-batches", "private": "nat",
        "watching": "detailed", "alarm_encryption": "own-key", "tracing": "on",
    })  # fmt: skip
    priced = prices.shipped().of(REGION)

    for event in some(cost.events(everything, 472, 6_840)):
        assert event.each.uses.keys() <= priced.keys(), event.what
        assert event.each.source, event.what


@pytest.mark.parametrize(
    ("more", "less"),
    [
        ({"devices": 200}, {"devices": 100}),
        ({"edits_per_hour": 24}, {}),
        ({"hours_per_day": 16}, {}),
        ({"receivers": 9}, {"receivers": 1}),
        ({"edits_per_push": 1}, {"edits_per_push": 10}),
        ({"row_bytes": 5_000}, {}),
        ({"rows": 10_000_000}, {}),
        ({"lake": "small-batches"}, {"lake": "none"}),
        ({"lake": "small-batches", "tables": 3}, {"lake": "small-batches", "tables": 1}),
        ({"lake": "glue-runs", "devices": 1e4}, {"lake": "small-batches", "devices": 1e4}),
        ({"lake": "small-batches"}, {"lake": "small-batches", "lake_every_minutes": 60}),
        ({"destinations": 1}, {}),
        ({"mode": "polling", "poll_every_s": 30}, {"mode": "polling", "poll_every_s": 300}),
        ({"private": "endpoints"}, {}),
        ({"private": "nat"}, {"private": "endpoints"}),
        ({"private": "nat", "zones": 3}, {"private": "nat", "zones": 2}),
        ({"watching": "detailed"}, {}),
        ({"alarm_encryption": "own-key"}, {}),
        ({"tracing": "on"}, {}),
    ],
)
def test_the_cost_rises_with_each_input(more: dict[str, Any], less: dict[str, Any]) -> None:
    assert usd(**more) > usd(**less)


def test_busy_connections_have_fewer_silences_than_idle_ones() -> None:
    assert cost.silences(0, 441) == 1 / 441
    assert cost.silences(1 / 10, 441) < 1e-9
    # One that hears something every ten minutes is silent for 441 s in half of the gaps.
    assert cost.silences(1 / 600, 441) == pytest.approx(1 / 650, rel=0.05)


def test_one_idle_connection_causes_minutes_keep_alives_and_checks_and_no_pushes() -> None:
    events = cost.events(described({"devices": 1, "edits_per_hour": 0}), 472, 6_840)
    times = {event.what: event.times for event in events}

    assert times["minutes of connections"] == MONTH_H * 60
    assert times["keep-alives"] == pytest.approx(MONTH_H * 3_600 / 472 / 2)
    assert times["checks for missed broadcasts"] == pytest.approx(times["keep-alives"])
    assert "pushes" not in times


def test_a_broadcast_counts_one_message_per_receiver_and_32_kb() -> None:
    assert counts.broadcast(9, 1).uses["socket_messages"] == 9
    assert counts.broadcast(9, 1_000).uses["socket_messages"] == 36


def test_the_defaults_are_within_their_bounds() -> None:
    assert described({}) == Description()
