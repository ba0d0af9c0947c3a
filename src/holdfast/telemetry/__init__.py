"""What operators see of runs: spans and metrics.

A span is made when the outcome that it shows is durable, from the outcome's record. So replay makes none, and a worker
that dies leaves none behind that another one makes again. The ids of spans follow from the run (see ``trace_context``),
so all workers that execute a part of a run, and what its steps call, are in one trace.

An engine asks ``Telemetry.find`` once. Without a tracer provider and without metrics there is no telemetry, and nothing
here costs anything.
"""
