"""What the Glue jobs are made of: a folder for each kind of destination, and what all share.

The promises are numbered in ``docs/spec``, for each kind on its page.
"""
