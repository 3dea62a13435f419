"""?? distributed_grid/identity"""
