"""Many runs: which there are, several at once on one GPU, spread over GPUs, brought to their end.

Nothing is imported here, so that runs can be planned without loading torch.
"""
