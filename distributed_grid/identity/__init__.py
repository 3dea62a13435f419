"""Identities of users and machines: keys, certificates and bearer tokens, and how to get them."""
