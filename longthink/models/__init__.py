"""Model families; importing this package registers them."""

from longthink.models import deepthinking, dnc, lstm, transformer
from longthink.models.base import build, models

__all__ = ["build", "deepthinking", "dnc", "lstm", "models", "transformer"]
