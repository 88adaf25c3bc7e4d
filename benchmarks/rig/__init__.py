"""What the benchmark programs share: servers, tables, jobs, measurement, results."""
