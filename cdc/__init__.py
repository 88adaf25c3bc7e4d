"""From MySQL to committed: receiver, consumer, checkpoints, the job and its command line."""
