"""A process that executes runs: ``workflow_loader`` finds the workflows to serve, ``worker_process`` serves them."""
