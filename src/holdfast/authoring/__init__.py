"""What users write: ``@workflow``, ``@step``, what workflow code may call, and the runtime."""
