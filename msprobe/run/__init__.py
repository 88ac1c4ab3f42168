"""``msprobe run``: a user's unmodified script with a debugger around it."""
