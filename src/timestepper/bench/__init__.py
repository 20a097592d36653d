"""Measurement of networks side by side: timing, training steps, peers and the floor."""
