"""The classes that the seed documents name, over one client."""
