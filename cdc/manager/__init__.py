"""Many jobs on several hosts: ``cdc serve``, which places the jobs of a state store on hosts and keeps them running."""
