"""Every order of the steps of those who share a gate: the real code, one shared access a step."""
