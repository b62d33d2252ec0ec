"""Jira: connector and actions."""
