"""Readers of trace formats: text or bytes in, a `Trace` out; no files are opened here."""
