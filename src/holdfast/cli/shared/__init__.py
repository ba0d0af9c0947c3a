"""What the commands share: the main group, options, access to the store or the server, and output."""
