"""Model families; importing this package registers them."""

from longthink.models import deepthinking, dnc, language, lstm, transformer
from longthink.models.base import build, models

__all__ = ["build", "deepthinking", "dnc", "language", "lstm", "models", "transformer"]
