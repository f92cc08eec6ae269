"""sipd beside llama.cpp on the same machine, file, threads and limit; see `python -m tests.benchmarks.peers.run --help`."""
