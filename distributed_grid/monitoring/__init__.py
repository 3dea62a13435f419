"""The import paths of the monitoring documents, as re-exports without logic of their own."""
