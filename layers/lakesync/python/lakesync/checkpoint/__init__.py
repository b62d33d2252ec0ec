"""Checkpoints: all rows of a gateway as objects on S3, ready to be sent.

`build` makes them, `store` reads and writes them, `manifest` describes their content, `keep`
decides which are kept.
"""
