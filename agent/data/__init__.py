"""Files of jobs on disk: output, shipped contents, results, and their retention."""
