"""Makes agents of other frameworks durable. Each package is imported only by users of its framework."""
