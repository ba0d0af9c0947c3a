"""A process that executes runs: ``loading`` finds the workflows that it is to serve, ``serve`` serves them."""
