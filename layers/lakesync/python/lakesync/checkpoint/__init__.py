"""Checkpoints: all rows of a gateway as objects on S3, ready to be sent.

`build` makes them, `store` keeps them, `manifest` says what one is made of, `keep` which are kept.
"""
