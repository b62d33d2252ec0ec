"""Finds what is wrong with a deployment: one module for each family of checks.

A check fetches what it needs (``…_facts``) and leaves the decision to a function of those facts
alone, which tests call without a cloud. Checks know nothing of each other, so one that may not ask
hides no other.
"""
