"""What the agent does to start a job: files, user, ports, and its talk with the supervisor."""
