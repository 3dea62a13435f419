"""The classes named in the seed documents, over one client."""
