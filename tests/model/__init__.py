"""A real but small source, sink and runner: no server, no Spark, durable where it matters."""
