"""Delivery: claims of declared destinations are applied to their databases, and new ones filled."""
