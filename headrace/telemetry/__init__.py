"""The telemetry of the process: metrics, logs, traces, where its threads are."""
