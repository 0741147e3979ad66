"""Published configurations by name; importing this package registers them."""

from longthink.recipes import deepthinking, router
from longthink.training.recipe import recipes

__all__ = ["deepthinking", "recipes", "router"]
