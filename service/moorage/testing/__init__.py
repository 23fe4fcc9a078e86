"""Fakes and clocks for programs that embed Moorage, verified by the tests the real parts pass."""
