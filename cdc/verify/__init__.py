"""Compare source and target of a running job, and repair what differs."""
