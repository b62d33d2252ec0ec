"""BigQuery: source and destination."""
