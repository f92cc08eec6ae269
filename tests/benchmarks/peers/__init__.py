"""sipd beside llama.cpp: same machine, file, threads and limit; `python -m tests.benchmarks.peers.run --help`."""
