"""`sipd doctor`: what is wrong with this machine before it breaks, one line a check with what to do about it."""
