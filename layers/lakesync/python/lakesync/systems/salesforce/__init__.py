"""Salesforce: connector and actions."""
