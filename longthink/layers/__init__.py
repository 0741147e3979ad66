"""Parts of models: attention kinds, positions, feed-forward kinds, adaptive computation time, memory.

Importing this package registers the feed-forward kinds.
"""

from longthink.layers import experts, product_keys, topk

__all__ = ["experts", "product_keys", "topk"]
