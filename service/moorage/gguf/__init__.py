"""GGUF, the model file of llama.cpp: refuse a damaged one, know its parts, write a tiny valid one.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (little-endian).
"""

from moorage.gguf.header import Gguf, GgufError, check_gguf
from moorage.gguf.parts import named, parts_of, unsplit, whole_model
from moorage.gguf.tiny import write_tiny

__all__ = [
    "Gguf",
    "GgufError",
    "check_gguf",
    "named",
    "parts_of",
    "unsplit",
    "whole_model",
    "write_tiny",
]
