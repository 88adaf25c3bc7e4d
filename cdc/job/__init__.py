"""One job: its states, requests, wiring and supervision."""
