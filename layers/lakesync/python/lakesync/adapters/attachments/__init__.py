"""Where attachments are kept: `lakesync.ports.SignedObjects` on S3, and in memory."""
