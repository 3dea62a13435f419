"""The services of this machine, and checks of them."""
