"""From a recipe to a finished run: the one place where method, data and engine meet.

Nothing is imported here, so that recipes can be read and checked without loading torch.
"""
