"""What separates a job from its node: how its processes are made, and how files that it can touch are opened."""
