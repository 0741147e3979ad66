"""Model families; importing this package registers them."""

from longthink.models import deepthinking
from longthink.models.base import build, models

__all__ = ["build", "deepthinking", "models"]
