"""What jobs leave and need on disk: output, shipped contents, results, and how long they are kept."""
