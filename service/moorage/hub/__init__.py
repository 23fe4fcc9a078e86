"""Model files from the Hugging Face hub."""
