"""What the coordinator has to do with Ray: boosts, and placement by Ray. One child process alone imports it."""
