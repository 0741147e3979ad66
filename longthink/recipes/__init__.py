"""Published configurations by name; importing this package registers them."""

from longthink.recipes import deepthinking, dnc, language, router
from longthink.training.recipe import recipes

__all__ = ["deepthinking", "dnc", "language", "recipes", "router"]
