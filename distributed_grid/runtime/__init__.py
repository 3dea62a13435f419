"""Processes and the operating system for all services: logs, health, Unix sockets, accounts, files that jobs could touch."""
