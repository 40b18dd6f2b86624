"""WHO answers: one module family per provider."""
