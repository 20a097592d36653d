"""Recipes: what to train and how, and sets of such runs. Without torch."""
