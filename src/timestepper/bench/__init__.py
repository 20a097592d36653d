"""Networks side by side on one device: what a training step and a forward pass take, and the least they could take."""
