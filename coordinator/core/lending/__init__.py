"""Lending between users and jobs: loans on nodes that have an owner, and slack, which revocable jobs run on."""
