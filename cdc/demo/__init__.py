"""The demonstration: a temporary MySQL server with a shop, a job, and a comparison of source and target."""
