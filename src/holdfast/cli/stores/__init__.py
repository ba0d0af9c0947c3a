"""Commands about a store: its namespaces, and a key to encrypt what is recorded."""
