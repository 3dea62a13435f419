"""Bringing a node into a grid by ssh, and taking it out: `grid node add` and `grid node remove`.

`plan.py` decides what is to be done, as data; `far_side.py` is the program that does it on the host; `adding.py` and
`removing.py` go through the plan, and back where a step fails.
"""
