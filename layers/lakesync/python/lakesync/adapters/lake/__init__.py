"""The lake: objects on S3, announcements on SQS, batches as Parquet."""
