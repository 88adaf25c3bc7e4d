"""The state of jobs: checkpoints, job records and job directories."""
