"""Salesforce as a source: any object that has a time of change."""
