"""The import paths of the orchestration documents, as re-exports without logic of their own."""
