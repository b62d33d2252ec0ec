"""The connector of BigQuery."""
