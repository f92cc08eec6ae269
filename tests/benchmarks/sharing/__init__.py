"""What requests gain from sharing passes, keys and values, and guesses: the measurements, one table a case."""
