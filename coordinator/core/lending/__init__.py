"""What is lent beyond the order of service: loans between users, and the slack of grants."""
