"""What a provider can take: circuit breakers, concurrency limits, permits."""
