"""Notifications to an app: rows that changed, tables that changed, the status of syncing."""
