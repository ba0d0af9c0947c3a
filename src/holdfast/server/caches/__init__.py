"""What a server remembers for a moment, so that not every request has to read it."""
