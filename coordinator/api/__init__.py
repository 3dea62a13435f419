"""What the coordinator answers: requests of clients, submissions, watches, files."""
