"""The demonstration: a private MySQL, a shop that is written to, a job, and the proof that both sides agree."""
