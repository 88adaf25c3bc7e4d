"""The job file: YAML to a checked Config."""
