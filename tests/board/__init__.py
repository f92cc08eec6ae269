"""The token ids that every instruction set must give, here and on ARM64."""
