"""A process that executes runs: ``workflow_loader`` finds the workflows that it is to serve, ``worker_process`` serves
them."""
