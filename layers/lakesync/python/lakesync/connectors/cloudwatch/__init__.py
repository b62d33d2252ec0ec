"""Metrics of CloudWatch as a source: a row for each datapoint."""
