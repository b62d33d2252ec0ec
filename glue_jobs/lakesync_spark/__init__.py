"""The code of the Glue jobs: a folder for each kind of destination, and a shared one.

The laws are in ``docs/spec``, on each kind's page.
"""
