"""Adds nodes to a grid over ssh, and removes them: `grid node add` and `grid node remove`.

`plan.py` decides what is to be done, as data; `provisioning.py` goes through the plan, and back where a step fails;
`remote.py` is the program that runs on the host.
"""
