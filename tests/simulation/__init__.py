"""The real registry and models under one seeded scheduler, judged by code of its own."""
