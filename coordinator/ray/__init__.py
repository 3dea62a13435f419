"""The coordinator's side of Ray: boosts, and placement by Ray. Only one child process imports Ray."""
