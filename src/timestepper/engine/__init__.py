"""Training of any module: schedule, optimiser, loop, checkpoints, processes. Knows neither data sets nor controllers.

Nothing is imported here, so that the command line can look at a run directory without loading torch.
"""
