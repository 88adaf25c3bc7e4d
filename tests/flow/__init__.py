"""A source, a sink and a runner that are real and small: no server, no Spark, durable where it matters."""
