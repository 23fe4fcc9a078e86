"""Registry and model actors. They only tell; what waits is a worker that tells back."""
