"""OpenTelemetry: traces, and the export of metrics and logs."""
