"""What runs tasks: workers, the threads and processes under them, and the keeper above."""
