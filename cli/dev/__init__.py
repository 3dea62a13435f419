"""`grid dev`: a whole grid on this machine, to try it out and for tests."""
