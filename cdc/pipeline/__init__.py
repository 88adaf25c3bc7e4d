"""The commit cycle: from Batches to committed loads and acknowledged positions."""
