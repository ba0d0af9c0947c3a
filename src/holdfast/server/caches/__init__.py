"""What a server remembers for a moment, so that a request need not read it."""
