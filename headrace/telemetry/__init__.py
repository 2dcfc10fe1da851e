"""What the process says of itself: metrics, logs, traces, where its threads are."""
