"""Keep model servers running from an embedded, event-sourced actor service."""
