"""Jira Cloud as a source: issues, comments, worklogs, projects and users."""
