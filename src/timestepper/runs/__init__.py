"""One run, from a recipe to its record: the one place where method, data and engine meet.

Nothing is imported here, so that a run can be looked at without loading torch.
"""
