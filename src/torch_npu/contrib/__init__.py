"""Help for scripts written for other devices."""
