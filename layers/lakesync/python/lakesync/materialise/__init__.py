"""From claims to the lake's tables: code shared by Spark and a function, and small batches."""
