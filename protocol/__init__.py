"""The words both ends speak: resources, messages, frames and sessions, without any I/O."""
