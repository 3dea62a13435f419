"""What both ends of a connection share: resources, messages, frames and sessions, without any I/O."""
