"""Published configurations by name; importing this package registers them."""

from longthink.recipes import deepthinking, dnc, router
from longthink.training.recipe import recipes

__all__ = ["deepthinking", "dnc", "recipes", "router"]
