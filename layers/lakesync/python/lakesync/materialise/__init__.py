"""From claims to the lake's tables: what Spark and a function share, and small batches."""
