"""The pure core: events, fold, decisions, lifecycle and invariants.

Nothing here knows threads, clocks, processes or databases; a linter keeps it so.
"""
