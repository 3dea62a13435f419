"""Processes and the operating system, for all services: logs, health, sockets, accounts, and files of jobs."""
