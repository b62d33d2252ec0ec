"""Destinations and sources. Drivers are imported by the module that needs them, and only there."""
