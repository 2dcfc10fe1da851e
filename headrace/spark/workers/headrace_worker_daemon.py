"""pyspark's process that forks Python workers, deaf to SIGTERM as they are.

Spark's JVM starts this in place of ``pyspark.daemon``. A SIGTERM for all processes of a service, as
systemd sends with KillMode=control-group, would take the workers away from the micro-batch that the
stop waits for. They end with the JVM, when their standard input does.

This is a top-level module in a folder of its own, and imports nothing of Headrace: workers are
forked from it, and should be small.
"""

from __future__ import annotations

import signal

from pyspark import daemon

if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    daemon.manager()  # type: ignore[no-untyped-call]
