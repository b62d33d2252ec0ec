"""Stripe as a source: lists at first, then its events."""
