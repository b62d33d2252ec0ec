"""How a connector of CloudWatch's metrics is configured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from pydantic import Field, model_validator

from lakesync.connectors.sql.configuration import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

TABLE: Final = "datapoints"
METRICS_MAX: Final = 250
"""Metrics of one connector: each is two of the 500 queries that a request may have."""


class Metric(Settings):
    """One metric, by one statistic."""

    name: str = Field(min_length=1, max_length=100, description="What it is called in the rows.")
    namespace: str = Field(min_length=1, max_length=255)
    metric: str = Field(min_length=1, max_length=255)
    dimensions: dict[str, str] = Field(default_factory=dict, max_length=30)
    statistic: Literal["Average", "Sum", "Minimum", "Maximum", "SampleCount"] = "Average"


class CloudWatchSettings(Settings):
    """Which metrics are read, and how far back."""

    metrics: list[Metric] = Field(min_length=1, max_length=METRICS_MAX)
    period_s: Literal[60, 300, 3600] = Field(60, description="Seconds of one datapoint.")
    first_hours: int = Field(24, ge=1, le=360, description="How far back the first poll reads.")
    late_minutes: int = Field(15, ge=0, le=1440, description="How late samples may come.")

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [metric.name for metric in self.metrics]
        if len(set(names)) < len(names):
            raise ValueError("two metrics have one name: their rows would be the same")
        return self

    def named(self) -> Mapping[str, str]:
        """Return the table with its name in the gateway."""
        return {TABLE: "cloudwatch_datapoints"}
