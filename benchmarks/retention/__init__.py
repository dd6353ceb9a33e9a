"""What it costs to delete ended runs after their retention, and what partitions would cost."""
