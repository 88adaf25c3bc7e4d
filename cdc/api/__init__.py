"""Status of a job as data, over HTTP and as metrics."""
