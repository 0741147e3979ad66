"""Published configurations by name; importing this package registers them."""

from longthink.recipes import deepthinking, dnc, language, router
from longthink.training.recipe import add, recipes

__all__ = ["add", "deepthinking", "dnc", "language", "recipes", "router"]
