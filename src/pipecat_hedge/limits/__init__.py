"""Circuit breakers, concurrency limits and permits: what a provider can take now."""
