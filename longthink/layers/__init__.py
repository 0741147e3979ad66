"""Parts of models: attention kinds, positions, feed-forward kinds, adaptive computation time."""
