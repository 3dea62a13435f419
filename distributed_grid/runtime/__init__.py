"""?? distributed_grid/runtime"""
