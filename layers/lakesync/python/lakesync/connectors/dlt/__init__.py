"""Sources of dlt, the library of sources: any of its resources is a table of a connector."""
