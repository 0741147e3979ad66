"""Tasks; importing this package registers them."""

from longthink.tasks import mazes, prefix_sums
from longthink.tasks.base import Batch, Split, Task, task, tasks

__all__ = ["Batch", "Split", "Task", "mazes", "prefix_sums", "task", "tasks"]
