"""The rules of the judge: its own fold of the rows, and what must hold of world and callers."""
