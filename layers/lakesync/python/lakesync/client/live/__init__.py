"""What an app is told without asking: rows that changed, tables that changed, how syncing goes."""
