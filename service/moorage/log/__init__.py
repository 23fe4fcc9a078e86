"""The event log on disk: one SQLite file that only grows, its owner's locks and its readers."""
