"""``cdc`` with a null sink in the place of Delta: ``python -m benchmarks.null_job start JOB.yaml --foreground``."""

from benchmarks.null_sink import NullSink
from cdc.cli import main
from channels.sinks import delta

if __name__ == "__main__":
    delta.DeltaSink = NullSink  # type: ignore[assignment,misc]
    main()
