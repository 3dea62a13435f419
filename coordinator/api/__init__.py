"""What the coordinator answers: requests of people, submissions, watches, files."""
