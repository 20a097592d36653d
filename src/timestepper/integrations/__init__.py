"""Small things for other people's trainers: saving as transformers does, and callbacks."""
