"""The services of this machine, and whether they are well."""
