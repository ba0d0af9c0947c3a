"""Where journals live: the store contract, and the stores that fulfil it."""
