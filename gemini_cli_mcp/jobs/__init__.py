"""Long work that outlives the call that started it."""
